package doctor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/state"
)

// ProbeSocket looks at the socket without connecting to it.
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

// The files of a state directory that are looked at.
const (
	stateDatabase = "state.db"
	stateMarks    = "marks"
)

// looks is how often a state directory that somebody may be writing to is
// copied before it is called damaged.
const looks = 3

// ProbeStateDir looks at a state directory. running says that the daemon that
// uses it runs: its files are then read as they are, else as a copy, since opening
// a SQLite file leaves traces.
func ProbeStateDir(path string, running bool) (s StateDir) {
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
	for _, name := range []string{stateDatabase, stateMarks} {
		f, err := os.Open(filepath.Join(path, name))
		switch {
		case errors.Is(err, fs.ErrPermission):
			s.Unreadable = true
			return s
		case err != nil:
			return s // new, or a part of it is missing, which the daemon says best
		}
		if name == stateMarks {
			s.MapErr = mapFile(f)
		}
		_ = f.Close()
	}
	report, err := inspect(path, running)
	for range looks - 1 {
		if err == nil {
			break
		}
		report, err = inspect(path, running)
	}
	if errors.Is(err, errNoCopy) {
		s.Unreadable = true
		return s
	}
	s.Damage = err
	for _, service := range report.Services {
		if service.Saved.Offered != nil {
			s.Refused = append(s.Refused, service.Name)
		}
	}
	return s
}

// errNoCopy: there is no room for a copy.
var errNoCopy = errors.New("no temporary directory can be made")

// inspect reads what is stored.
func inspect(path string, running bool) (state.Report, error) {
	if running {
		return state.Inspect(path, state.Options{})
	}
	dir, err := os.MkdirTemp("", "kazahana-doctor-")
	if err != nil {
		return state.Report{}, errNoCopy
	}
	defer os.RemoveAll(dir)
	for _, name := range []string{stateMarks, stateDatabase, stateDatabase + "-wal"} {
		if err := copyFile(filepath.Join(path, name), filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return state.Report{}, err
		}
	}
	report, err := state.Inspect(dir, state.Options{})
	var damaged *state.FileError
	if errors.As(err, &damaged) { // by the name that the operator knows
		damaged.Path = filepath.Join(path, filepath.Base(damaged.Path))
	}
	return report, err
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// mapFile tries what the daemon does with its marks, for reading only.
func mapFile(f *os.File) error {
	page, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	return unix.Munmap(page)
}

// fileSystem is what path is on, or will be once it is made.
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

// ProbePlace tells what this process runs in.
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

// ProbeFiles reads the limit of open files of the daemon, or of this process if
// pid is 0; below that it is a process that cannot be seen from here.
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
