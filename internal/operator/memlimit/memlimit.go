// Package memlimit finds out how much memory the process may use.
package memlimit

import (
	"bufio"
	"bytes"
	"cmp"
	"io/fs"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// Default is the limit where no control group sets one, in bytes.
const Default = 1 << 30

// unlimited is from where on a limit of version 1 means that there is none.
const unlimited = 1 << 60

// Of returns the smallest limit in bytes that the process's control groups set, of
// version 2 or 1, or Default. root is the root of the file system.
func Of(root fs.FS) int64 {
	groups, _ := fs.ReadFile(root, "proc/self/cgroup") // nothing outside Linux
	least := int64(0)
	for _, file := range candidates(groups) {
		text, err := fs.ReadFile(root, file)
		if err != nil {
			continue
		}
		// "max" is no number.
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && 0 < n && n < unlimited && (least == 0 || n < least) {
			least = n
		}
	}
	return cmp.Or(least, Default)
}

// candidates are the files that may hold a limit: of the process's groups and of all
// above them. A container may see its own group as the root, under any name.
func candidates(groups []byte) (files []string) {
	lines := bufio.NewScanner(bytes.NewReader(groups))
	for lines.Scan() {
		parts := strings.SplitN(lines.Text(), ":", 3) // ID, controllers, path
		if len(parts) != 3 {
			continue
		}
		mount, names := "sys/fs/cgroup", []string{"memory.max", "memory.high"}
		switch {
		case parts[1] == "memory":
			mount, names = "sys/fs/cgroup/memory", []string{"memory.limit_in_bytes"}
		case parts[1] != "":
			continue
		}
		for group := path.Join(mount, parts[2]); ; group = path.Dir(group) {
			for _, name := range names {
				files = append(files, path.Join(group, name))
			}
			if len(group) <= len(mount) {
				break
			}
		}
	}
	return files
}

// Set returns how much memory this process may use: as configured, or what its
// control group allows. The collector keeps a third below it, unless GOMEMLIMIT says
// otherwise: the kernel may hold as much for the sockets, which it does not know of.
func Set(configured int64) int64 {
	limit := configured
	if limit == 0 {
		limit = Of(os.DirFS("/"))
	}
	if _, set := os.LookupEnv("GOMEMLIMIT"); !set {
		debug.SetMemoryLimit(limit / 3 * 2)
	}
	return limit
}
