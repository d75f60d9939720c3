package state

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockPatience is how long a taken lock is asked for again. Inspect holds it
	// shared for an instant, and a daemon that was told to stop may be in its
	// last steps.
	lockPatience = 100 * time.Millisecond
	lockInterval = 10 * time.Millisecond

	// lockRecordLen is fixed so that the record is overwritten in place: a
	// daemon can then restart on a full disk.
	lockRecordLen = 64
)

// Holder is the process that uses a state directory.
type Holder struct {
	PID   int       // 0: not known
	Since time.Time // when it took the directory
}

// LockedError says that another process uses the state directory.
type LockedError struct {
	PID   int       // 0: not known
	Since time.Time // when it took the directory; may be zero
	Path  string    // the lock file
}

func (e *LockedError) Error() string {
	who := "another process (unknown: its lock file was removed?)"
	if e.PID != 0 {
		who = fmt.Sprintf("process %d (since %s)", e.PID, e.Since.Format(time.RFC3339))
	}
	return fmt.Sprintf("%s: the state directory is in use by %s; one daemon per state directory: stop that one, or set another state_dir", e.Path, who)
}

// dirLock is held until release, or until the process ends in whatever way: the
// kernel drops a flock with its last descriptor. The file itself stays, because
// removing it would let two processes lock two files of one name. An operator
// who takes it for a left-over removes it all the same, and two users of one
// lease must not come of that: hence the directory is locked as well.
type dirLock struct{ file, dir *os.File }

// lock takes the directory for this process.
//
// It returns a *LockedError when another process has it.
func (d directory) lock(now time.Time) (*dirLock, error) {
	path := d.file(lockName)
	exists, err := d.exists(lockName)
	if err != nil {
		return nil, err
	}
	var f *os.File
	if !exists {
		f, err = d.createFile(lockName)
		exists = errors.Is(err, os.ErrExist) // somebody else just did
	}
	if exists {
		if f, err = os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0); err != nil {
			err = fileError(path, "cannot open the lock", err)
		}
	}
	if err != nil {
		return nil, err
	}
	l := &dirLock{file: f}
	if l.dir, err = os.Open(d.path); err != nil {
		return nil, errors.Join(fileError(d.path, "cannot open the state directory", err), f.Close())
	}
	if err := l.acquire(now); err != nil {
		return nil, errors.Join(err, f.Close(), l.dir.Close())
	}
	return l, nil
}

func (l *dirLock) acquire(now time.Time) error {
	path := l.file.Name()
	err := flockPatiently(l.file)
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder := readHolder(l.file)
		return &LockedError{PID: holder.PID, Since: holder.Since, Path: path}
	}
	if err != nil {
		return fileError(path, "cannot lock it", err)
	}
	// Not every file system can lock a directory; then the file has to do.
	if errors.Is(flockPatiently(l.dir), unix.EWOULDBLOCK) {
		return &LockedError{Path: path}
	}
	record := strconv.Itoa(os.Getpid()) + " " + now.UTC().Format(time.RFC3339)
	if err := l.write(record); err != nil {
		return fileError(path, "cannot write the lock's holder", err)
	}
	return nil
}

func (l *dirLock) write(record string) error {
	_, err := l.file.WriteAt(fmt.Appendf(nil, "%-*s\n", lockRecordLen-1, record), 0)
	return err
}

// release blanks the record first: whoever reads it later shall not take a
// reused PID for the holder.
func (l *dirLock) release() error {
	return errors.Join(l.write(""), l.dir.Close(), l.file.Close())
}

func flockPatiently(f *os.File) error {
	for waited := time.Duration(0); ; waited += lockInterval {
		err := flock(f, unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || waited >= lockPatience {
			return err
		}
		time.Sleep(lockInterval)
	}
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func readHolder(f *os.File) Holder {
	record := make([]byte, lockRecordLen)
	n, _ := f.ReadAt(record, 0)
	fields := strings.Fields(string(record[:n]))
	if len(fields) != 2 {
		return Holder{}
	}
	pid, err := strconv.Atoi(fields[0])
	since, timeErr := time.Parse(time.RFC3339, fields[1])
	if err != nil || timeErr != nil || pid <= 0 {
		return Holder{}
	}
	return Holder{PID: pid, Since: since}
}

// holder returns the process that has the directory, or nil. It asks the lock
// and not the record, which survives a kill -9.
func (d directory) holder() (*Holder, error) {
	for _, path := range []string{d.file(lockName), d.path} {
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe shall not keep us
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fileError(path, "cannot open it to ask for its lock", err)
		}
		held := errors.Is(flock(f, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
		holder := readHolder(f) // of the directory: none
		f.Close()               // drops the lock, if this got it
		if held {
			return &holder, nil
		}
	}
	return nil, nil
}
