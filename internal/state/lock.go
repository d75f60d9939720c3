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
	lockName = "lock"

	// lockPatience is how long a taken lock is tried again. Inspect holds it
	// for an instant, which takes longer on a busy machine, and a stopping daemon may be
	// about to release it.
	lockPatience = time.Second
	lockInterval = 10 * time.Millisecond

	// predecessorInterval is how often the folder of a dying predecessor is tried again.
	predecessorInterval = 100 * time.Millisecond

	// lockRecordLen is fixed so that the record is overwritten in place: a
	// daemon can then restart on a full disk.
	lockRecordLen = 32
)

// LockedError says that another process holds a directory.
type LockedError struct {
	Holder
	Path string // the file that names the holder, or the directory
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("%s: the state directory is in use by %v; one daemon per state directory: stop that one, or set another state_dir", e.Path, e.Holder)
}

// Lock locks the directory itself: no file that an operator can remove. The kernel drops the
// lock with its last descriptor, so with the process, however that ends.
func (d *osDir) Lock(record string) error {
	f, err := d.root.Open(".")
	if err != nil {
		return fileError(d.path, "cannot open the directory", err)
	}
	switch err = flockPatiently(f); {
	case errors.Is(err, unix.EWOULDBLOCK):
		err = &LockedError{Holder: d.readRecord(record), Path: d.file(record)}
	case err != nil:
		err = fileError(d.path, "cannot lock it", err)
	case record != "":
		err = d.writeRecord(record)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	d.lock = f
	return nil
}

// writeRecord says which process this is. It stays in the file when the process ends: the
// disk may be frozen then.
func (d *osDir) writeRecord(name string) error {
	f, _, err := d.openRegular(name, os.O_RDWR)
	if isMissing(err) {
		f, err = d.createFile(name)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteAt(fmt.Appendf(nil, "%-*d\n", lockRecordLen-1, os.Getpid()), 0)
	if err = errors.Join(err, f.Close()); err != nil {
		return fileError(d.file(name), "cannot write the lock's holder", err)
	}
	return nil
}

// readRecord reads the directory's holder, if it is locked. The holder is zero where that
// cannot be read.
func (d *osDir) readRecord(name string) Holder {
	f, _, err := d.openRegular(name, os.O_RDONLY)
	if err != nil {
		return Holder{}
	}
	defer f.Close()
	record := make([]byte, lockRecordLen)
	n, _ := f.ReadAt(record, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(record[:n])))
	if err != nil || pid < 0 {
		return Holder{}
	}
	return Holder{PID: pid}
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

// Holder returns the process that holds the directory, or nil. It asks the lock and not
// the record, because the record survives a kill -9.
func (d *osDir) Holder() (*Holder, error) {
	f, err := d.root.Open(".")
	if err != nil {
		return nil, fileError(d.path, "cannot open it to ask for its lock", err)
	}
	held := errors.Is(flock(f, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
	f.Close() // drops the lock, if it was taken
	if !held {
		return nil, nil
	}
	holder := d.readRecord(lockName)
	return &holder, nil
}
