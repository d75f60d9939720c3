//go:build linux

package abuse

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
)

// group is a control group with a limit of memory. A nil group is none.
type group struct{ dir, peakFile string }

var groupNumber atomic.Int64

// newGroup makes a group below this process's own, or below one above it, where that is
// allowed: of version 1 or 2.
func newGroup(limit int64) (*group, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	failed := errors.New("this system has no control groups")
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		mount, limitFile, peakFile := "/sys/fs/cgroup", "memory.max", "memory.peak"
		switch parts[1] {
		case "memory":
			mount, limitFile, peakFile = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"
		case "":
		default:
			continue
		}
		// A container may see its own group as the root, whatever its name. In version 2
		// only a group above may allow new ones.
		for above := filepath.Join(mount, parts[2]); ; above = filepath.Dir(above) {
			dir := filepath.Join(above, fmt.Sprintf("kazahana-abuse-%d-%d", os.Getpid(), groupNumber.Add(1)))
			if failed = os.Mkdir(dir, 0o755); failed == nil {
				if failed = set(filepath.Join(dir, limitFile), limit); failed == nil {
					return &group{dir, filepath.Join(dir, peakFile)}, nil
				}
				_ = os.Remove(dir)
			}
			if len(above) <= len(mount) {
				break
			}
		}
	}
	return nil, failed
}

// set writes a file that the kernel has made: elsewhere there is none.
func set(path string, limit int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.FormatInt(limit, 10))
	return errors.Join(err, f.Close())
}

// within is the command line that starts a program in the group.
func (g *group) within(path string, args ...string) (string, []string) {
	if g == nil {
		return path, args
	}
	return "/bin/sh", append([]string{"-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(g.dir, "cgroup.procs"), path}, args...)
}

// peak is the most that the group was charged with, the kernel's buffers and the cache of
// files included; 0 if that is not known.
func (g *group) peak() int64 {
	if g == nil {
		return 0
	}
	text, err := os.ReadFile(g.peakFile)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// remove removes the group, which must be empty.
func (g *group) remove() {
	if g != nil {
		_ = os.Remove(g.dir)
	}
}
