package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	databaseName = "state.db"
	marksName    = "marks"
	lockName     = "lock"

	// newSuffix marks a file under construction; one that is found at start is
	// what a crash left behind, and holds nothing that anyone relies on.
	newSuffix = ".new"
)

// FileError says what is wrong with a file of the state directory, or with the
// directory, and what the operator can do about it.
type FileError struct {
	Path    string
	Problem string
	Remedy  string
	Err     error // the cause, or nil
}

func (e *FileError) Error() string {
	text := e.Path + ": " + e.Problem
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

func (e *FileError) Unwrap() error { return e.Err }

// fileError explains an error of the operating system. The cause alone is kept,
// because Path already names the file.
func fileError(path, problem string, err error) *FileError {
	var cause *fs.PathError
	if errors.As(err, &cause) {
		err = cause.Err
	}
	e := &FileError{Path: path, Problem: problem, Err: err}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		e.Remedy = "free some space on that file system"
	case errors.Is(err, unix.EROFS):
		e.Remedy = "mount it writable, or set state_dir to a directory on another file system"
	case errors.Is(err, fs.ErrPermission):
		e.Remedy = "give the user that runs this read and write access to it, or set another state_dir"
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EISDIR):
		e.Remedy = "a regular file belongs there; move it away"
	}
	return e
}

// fileID tells a file from a copy of it.
type fileID struct{ device, inode uint64 }

func idOf(info fs.FileInfo) fileID {
	st := info.Sys().(*syscall.Stat_t)
	return fileID{device: uint64(st.Dev), inode: st.Ino} // Dev is narrower on macOS
}

// diskUsage is how much disk space the file has, in bytes.
func diskUsage(info fs.FileInfo) int64 {
	return info.Sys().(*syscall.Stat_t).Blocks * 512 // stat(2) counts so on every system
}

// directory is a checked state directory.
type directory struct {
	path string
	uid  int
	gid  int
}

func (d directory) file(name string) string { return filepath.Join(d.path, name) }

// openDirectory checks the directory and, where create is set, makes it first.
// The note is for the log: something that works and should still be changed.
func openDirectory(path string, create bool) (dir directory, note string, err error) {
	if path == "" {
		return dir, "", errors.New("the state directory has no name")
	}
	if path, err = filepath.Abs(path); err != nil {
		return dir, "", err
	}
	if create {
		if err := os.MkdirAll(path, 0o700); err != nil {
			// MkdirAll names the component that stands in the way, which need
			// not be the last one.
			return dir, "", fileError(path, "cannot make the state directory", err)
		}
	}
	info, err := os.Stat(path) // follows a link: systemd makes one with DynamicUser=
	if err != nil {
		return dir, "", fileError(path, "cannot open the state directory", err)
	}
	if !info.IsDir() {
		return dir, "", &FileError{Path: path, Problem: "is not a directory",
			Remedy: "set state_dir to a directory"}
	}
	st := info.Sys().(*syscall.Stat_t)
	dir = directory{path: path, uid: int(st.Uid), gid: int(st.Gid)}
	if info.Mode().Perm()&0o002 != 0 {
		// Whoever can write here can put leases and marks under the daemon.
		// In a shared place such as /tmp that is the normal case; in a
		// directory of our own it is an oversight, and no reason to stop.
		if dir.uid != os.Geteuid() {
			return dir, "", &FileError{Path: path, Problem: "everybody may write to this directory, and it belongs to somebody else",
				Remedy: "set state_dir to a directory inside it (it is created with mode 0700), or run chmod o-w"}
		}
		note = path + ": everybody may write to the state directory; run chmod o-w"
	}
	return dir, note, nil
}

// createFile makes a new file for the daemon alone. Made by root in another
// user's directory (`sudo kazahanad state ...`) it goes to that user, who could
// not open it otherwise.
func (d directory) createFile(name string) (*os.File, error) {
	path := d.file(name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fileError(path, "cannot create it", err)
	}
	if os.Geteuid() == 0 && d.uid != 0 {
		if err := f.Chown(d.uid, d.gid); err != nil {
			return nil, errors.Join(fileError(path, "cannot give it to the directory's owner", err), f.Close(), os.Remove(path))
		}
	}
	return f, nil
}

// publish gives a finished, synced file its name.
func (d directory) publish(name string) error {
	path := d.file(name)
	if err := os.Rename(path+newSuffix, path); err != nil {
		return fileError(path, "cannot rename the new file", errors.Unwrap(err))
	}
	return d.sync()
}

// sync makes names created in the directory durable.
func (d directory) sync() error {
	f, err := os.Open(d.path)
	if err != nil {
		return fileError(d.path, "cannot open the state directory", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fileError(d.path, "cannot sync the state directory", err)
	}
	return nil
}

// exists reports whether the name is taken by a regular file. Anything else
// under that name is an error.
func (d directory) exists(name string) (bool, error) {
	path := d.file(name)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fileError(path, "cannot look at it", err)
	case !info.Mode().IsRegular():
		return false, &FileError{Path: path, Problem: fmt.Sprintf("is not a regular file (%s)", info.Mode()),
			Remedy: "move it away"}
	}
	return true, nil
}

// clean removes what a crash during the creation of a file left behind. The
// caller holds the lock.
func (d directory) clean(name string) error {
	for _, suffix := range []string{"", "-journal", "-wal", "-shm"} {
		path := d.file(name + newSuffix + suffix)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fileError(path, "cannot remove this left-over", err)
		}
	}
	return nil
}
