package state

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dir is a directory of small files, which are read and written whole. The state runs
// over two of them: one on a disk and one in memory. The directory stays the same one
// when its name comes to mean another.
type Dir interface {
	// Path is the name under which the directory was opened.
	Path() string

	// Lock takes the directory for this process, until Close or the end of the
	// process. With a name it says in a file of that name which process this is. It
	// returns a *LockedError when another process has the directory.
	Lock(record string) error

	// Read returns the content of a file. The error wraps fs.ErrNotExist when there
	// is none.
	Read(name string) ([]byte, error)

	// Replace writes a file whole: under another name first, synced, then renamed,
	// so that a crash leaves the old file or the new one.
	Replace(name string, content []byte) error

	// Map maps a file of whole 8-byte words into memory, for reading and, where
	// the second argument is true, for writing.
	Map(name string, writable bool) (*Mapping, error)

	// Identify returns what identifies the file of that name now, and for "." the
	// directory. The error wraps fs.ErrNotExist when there is none.
	Identify(name string) (FileID, error)

	// Current reports, as an error, that Path no longer leads to this directory.
	Current() error

	// Sub opens a directory inside this one, and makes it where it does not exist.
	Sub(name string) (Dir, error)

	// Close gives up the lock. The files stay.
	Close() error
}

// FileID distinguishes a file, or a directory, from a copy of it.
type FileID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// Mapping is a file in memory. An access behind the end of a shortened file ends the process.
type Mapping struct {
	Words []int64
	ID    FileID
	Unmap func() error
}

// Holder is the process that holds a state directory.
type Holder struct {
	PID int // 0: not known; the number in its own container, if it runs in one
}

func (h Holder) String() string {
	if h.PID == 0 {
		return "another process (unknown: its lock file was removed?)"
	}
	return fmt.Sprintf("process %d (if it runs in a container, that is its number there)", h.PID)
}

// FileError is an error about a file or a directory of the state, with a remedy for
// the operator.
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

// Lasting reports whether the error stays until an operator removes its cause: it is
// about the kind or the content of the file. Errors of the operating system, such as
// a full disk, may pass.
func (e *FileError) Lasting() bool {
	var errno syscall.Errno
	return !errors.As(e.Err, &errno)
}

// fileError explains an error of the operating system. It drops the path from the
// cause, because Path already names the file.
func fileError(path, problem string, err error) *FileError {
	err = pathCause(err)
	e := &FileError{Path: path, Problem: problem, Err: err}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		e.Remedy = "free some space on that file system"
	case errors.Is(err, unix.EROFS):
		e.Remedy = "mount it writable, or set state_dir or live_dir to a directory on another file system"
	case errors.Is(err, fs.ErrPermission):
		e.Remedy = "give the user that runs this read and write access to it, or set state_dir or live_dir to another directory"
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOTEMPTY):
		e.Remedy = "a regular file belongs there; move it away"
	}
	return e
}

// isMissing reports whether the error says that a file does not exist.
func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
