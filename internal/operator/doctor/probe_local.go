package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/folder"
	"github.com/kazahana/kazahana/internal/state"
)

// ProbeSocket reads the facts about the socket without connecting to it.
func ProbeSocket(path string) Socket {
	s := Socket{Path: path}
	info, err := os.Stat(path)
	if err != nil {
		s.Denied = errors.Is(err, fs.ErrPermission)
		return s
	}
	owner := info.Sys().(*syscall.Stat_t)
	s.Exists, s.Mode, s.UID, s.GID = true, info.Mode(), owner.Uid, owner.Gid
	s.Group = strconv.FormatUint(uint64(owner.Gid), 10)
	if g, err := user.LookupGroupId(s.Group); err == nil {
		s.Group = g.Name
	}
	return s
}

// ProbeBarrier looks for a directory that keeps users of the socket out. A socket that is meant
// for its own user may be in a directory of that user's alone.
func (s *Socket) ProbeBarrier() {
	switch mode := s.Mode.Perm(); {
	case mode&0o002 != 0:
		s.Barrier, s.Closed = folder.Barrier(s.Path, math.MaxUint32) // a group that no directory has
	case mode&0o020 != 0 && s.GID != 0:
		s.Barrier, s.Closed = folder.Barrier(s.Path, s.GID)
	}
}

// ProbeStateDir reads a state directory and its live directory, also while a daemon
// uses them. It writes nothing, so a frozen disk does not hold it up.
func ProbeStateDir(path string) (s StateDir) {
	s.Path = path
	if path == "" {
		return s
	}
	info, err := os.Stat(path)
	s.FS = fileSystem(path)
	if err != nil {
		s.Unreadable = errors.Is(err, fs.ErrPermission)
		return s
	}
	owner := info.Sys().(*syscall.Stat_t)
	s.Exists, s.Directory, s.Mode, s.UID = true, info.IsDir(), info.Mode(), owner.Uid
	if !s.Directory {
		return s
	}
	switch used, err := state.Used(path); {
	case errors.Is(err, fs.ErrPermission):
		s.Unreadable = true
		return s
	case err == nil && !used:
		s.Forgot = state.Forgot(path)
		return s
	}
	report, err := state.Inspect(path, state.Options{})
	if errors.Is(err, fs.ErrPermission) || errors.Is(report.Damage, fs.ErrPermission) {
		s.Unreadable = true
		return s
	}
	s.Damage, s.Used = err, err == nil
	if report.Holder != nil && !report.Holder.Dying {
		s.Holder = report.Holder.String()
	}
	s.Live, s.LiveMissing, s.LiveDamage = report.Live, report.Missing, report.Damage
	s.LiveOnDisk = report.Live != "" && !report.Missing && !report.Memory
	for _, service := range report.Services {
		if time.Until(time.UnixMilli(service.Mark)) > markAhead {
			s.Ahead = append(s.Ahead, service.Name)
		}
		if service.Saved.Offered != nil {
			s.Refused = append(s.Refused, service.Name)
		}
	}
	return s
}

// fileSystem is the file system that path is on, or will be on once it exists.
func fileSystem(path string) (f FileSystem) {
	for ; ; path = filepath.Dir(path) {
		var st unix.Statfs_t
		err := unix.Statfs(path, &st)
		if err == nil {
			f.Type, f.ReadOnly = describe(&st)
			f.Free = uint64(st.Bavail) * uint64(st.Bsize)
			return f
		}
		if !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
			return f
		}
	}
}

// OneDisk reports whether both files or directories are on one file system, or will
// be once they exist.
func OneDisk(one, other string) bool {
	a, b := device(one), device(other)
	return a != 0 && a == b
}

// device identifies the file system that path is on, or will be on; 0 if unknown.
func device(path string) uint64 {
	for ; ; path = filepath.Dir(path) {
		var st unix.Stat_t
		err := unix.Stat(path, &st)
		if err == nil {
			return uint64(st.Dev)
		}
		if !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
			return 0
		}
	}
}

// ProbePlace finds out what kind of environment this process runs in.
func ProbePlace(lookup func(string) (string, bool)) (p Place) {
	_, p.Kubernetes = lookup("KUBERNETES_SERVICE_HOST")
	_, p.Container = lookup("container") // set by systemd-nspawn and podman
	for _, mark := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(mark); err == nil {
			p.Container = true
		}
	}
	p.Container = p.Container || p.Kubernetes
	return p
}

// ProbeFiles reads the limit of open files of the daemon, or of this process if pid
// is 0. A negative pid stands for a daemon in another PID namespace.
func ProbeFiles(pid, maxConnections int) Files {
	f := Files{Whose: "this process", MaxConnections: maxConnections}
	if pid < 0 {
		f.Whose, f.Err = "the daemon", errors.New("its process cannot be seen from here")
		return f
	}
	if pid != 0 {
		f.Whose = fmt.Sprintf("the daemon (process %d)", pid)
		f.Limit, f.Err = filesOf(pid)
		return f
	}
	var limit unix.Rlimit
	f.Err = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	f.Limit = uint64(limit.Max) // Go raises its own to that
	return f
}

// LostTo reports whether a path is missing for a process too. Where this user cannot
// look, or the process is in another container, it may be there.
func LostTo(pid int, path string) bool {
	root := fmt.Sprintf("/proc/%d/root", pid)
	if _, err := os.Stat(root); err != nil {
		return false
	}
	_, err := os.Stat(filepath.Join(root, path))
	return errors.Is(err, fs.ErrNotExist)
}

// SamePlace reports whether a process's directory is the one that this process knows by
// that path.
func SamePlace(pid int, its, path string) bool {
	if its == path {
		return true
	}
	a, err := os.Stat(filepath.Join(fmt.Sprintf("/proc/%d/root", pid), its))
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

// Listens reports whether a process listens on the port of a TCP address, or may, where
// that cannot be seen.
func Listens(pid int, address string) bool {
	tcp, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return false
	}
	its := map[string]bool{}
	proc := fmt.Sprintf("/proc/%d", pid)
	files, err := os.ReadDir(proc + "/fd")
	if err != nil {
		return true
	}
	for _, f := range files {
		if to, err := os.Readlink(proc + "/fd/" + f.Name()); err == nil {
			its[to] = true
		}
	}
	const listening = "0A"
	for _, family := range []string{"/net/tcp", "/net/tcp6"} {
		table, _ := os.ReadFile(proc + family) // a kernel without IPv6 has no tcp6
		for line := range strings.Lines(string(table)) {
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == listening && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", tcp.Port)) && its["socket:["+f[9]+"]"] {
				return true
			}
		}
	}
	return false
}
