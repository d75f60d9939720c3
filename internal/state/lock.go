package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	lockName = "lock"

	// lockPatience is how long a taken lock is tried again. Inspect and the removal
	// of abandoned folders hold it for an instant, which takes longer on a busy
	// machine, and a stopping daemon may be about to release it.
	lockPatience = time.Second
	lockInterval = 10 * time.Millisecond

	// dyingInterval is how often the lock of a dying process is tried again, and
	// dyingLogged how often the log reports the wait.
	dyingInterval = 100 * time.Millisecond
	dyingLogged   = 10 * time.Second

	// lockRecordLen is fixed so that the record is overwritten in place: a
	// daemon can then restart on a full disk.
	lockRecordLen = 64
)

// LockedError says that another process holds a directory.
type LockedError struct {
	Holder
	Path string // the lock file, or the directory
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("%s: the state directory is in use by %v; one daemon per state directory: stop that one, or set another state_dir", e.Path, e.Holder)
}

// isDying is true of a process that was killed: it keeps its locks while it hangs in a
// frozen file system, and ends by itself.
func isDying(e *LockedError) bool { return e.Dying }

// lockPatiently locks the directory. It waits while that belongs to a process that ends by
// itself.
func lockPatiently(ctx context.Context, d Dir, name string, log *zap.Logger, ends func(*LockedError) bool) error {
	said := time.Time{}
	for {
		err := tellIfSlow(log, d.Path(), func() error { return d.Lock(name) })
		locked, taken := errors.AsType[*LockedError](err)
		if !taken || !ends(locked) {
			return err
		}
		if time.Since(said) >= dyingLogged {
			said = time.Now()
			log.Warn("the directory belongs to a process that was killed and has not ended; waiting for it",
				zap.String("directory", d.Path()), zap.Int("pid", locked.PID))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(dyingInterval):
		}
	}
}

// tellIfSlow runs one step of the start, and logs if the disk keeps it waiting.
func tellIfSlow(log *zap.Logger, path string, step func() error) error {
	slow := time.AfterFunc(stallAfter, func() {
		log.Warn("the disk does not answer; the start waits for it", zap.String("directory", path))
	})
	defer slow.Stop()
	return step()
}

// dirLock is held until release, or until the process ends in any way: the kernel
// drops a flock with its last descriptor. The file stays, because removing it would let
// two processes lock two files of one name. An operator may still remove it, and even
// then two processes must not share a directory: so that is locked as well.
type dirLock struct{ file, dir *os.File } // file: nil if only the directory is locked

func (d *osDir) Lock(name string) (err error) {
	l, path := &dirLock{}, d.path
	if name != "" {
		path = d.file(name)
		if l.file, err = d.openLock(name); err != nil {
			return err
		}
	}
	if l.dir, err = d.root.Open("."); err != nil {
		return errors.Join(fileError(d.path, "cannot open the directory", err), l.release())
	}
	if err := l.acquire(path); err != nil {
		return errors.Join(err, l.release())
	}
	d.lock = l
	return nil
}

func (d *osDir) openLock(name string) (f *os.File, err error) {
	for {
		if f, _, err = d.openRegular(name, os.O_RDWR); !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		if f, err = d.createFile(name); !errors.Is(err, fs.ErrExist) {
			return f, err // otherwise another process made it meanwhile
		}
	}
}

func (l *dirLock) acquire(path string) error {
	for _, f := range []*os.File{l.file, l.dir} {
		if f == nil {
			continue
		}
		switch err := flockPatiently(f); {
		case errors.Is(err, unix.EWOULDBLOCK):
			return &LockedError{Holder: readRecord(l.file), Path: path}
		case err != nil && (f == l.file || l.file == nil): // not every file system can lock a directory
			return fileError(path, "cannot lock it", err)
		}
	}
	if l.file == nil {
		return nil
	}
	record := strconv.Itoa(os.Getpid()) + " " + time.Now().UTC().Format(time.RFC3339) + " " + pidNamespace()
	if _, err := l.file.WriteAt(fmt.Appendf(nil, "%-*s\n", lockRecordLen-1, record), 0); err != nil {
		return fileError(path, "cannot write the lock's holder", err)
	}
	return nil
}

// current returns an error if the lock file of the directory is no longer the one
// that is locked.
func (l *dirLock) current(root *os.Root) error {
	if l.file == nil {
		return nil
	}
	mine, err := l.file.Stat()
	if err != nil {
		return err
	}
	there, err := root.Lstat(lockName)
	if err == nil && !os.SameFile(mine, there) {
		err = errors.New("another lock file has taken the place of its own")
	}
	return err
}

// release leaves the record in the file: Holder asks the lock first, and the disk may
// be frozen.
func (l *dirLock) release() error {
	var errs []error
	for _, f := range []*os.File{l.dir, l.file} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
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

// readRecord reads who holds a lock file.
func readRecord(f *os.File) Holder {
	if f == nil {
		return Holder{}
	}
	record := make([]byte, lockRecordLen)
	n, _ := f.ReadAt(record, 0)
	fields := strings.Fields(string(record[:n]))
	if len(fields) != 3 {
		return Holder{}
	}
	pid, err := strconv.Atoi(fields[0])
	since, timeErr := time.Parse(time.RFC3339, fields[1])
	if err != nil || timeErr != nil || pid <= 0 {
		return Holder{}
	}
	h := Holder{PID: pid, Since: since, Elsewhere: fields[2] != pidNamespace()}
	h.Dying = !h.Elsewhere && dying(pid)
	return h
}

// pidNamespace names the PID namespace of this process.
func pidNamespace() string {
	name, err := os.Readlink("/proc/self/ns/pid") // pid:[4026531836]
	if err != nil {
		return "-" // not Linux
	}
	return strings.Trim(strings.TrimPrefix(name, "pid:"), "[]")
}

// Holder returns the process that holds the directory, or nil. It asks the lock and not
// the record, because the record survives a kill -9.
func (d *osDir) Holder() (*Holder, error) {
	for _, name := range []string{lockName, "."} {
		f, err := d.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // do not block on a pipe
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fileError(d.file(name), "cannot open it to ask for its lock", err)
		}
		held := errors.Is(flock(f, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
		var holder Holder
		if held && name == lockName {
			holder = readRecord(f)
		}
		f.Close() // drops the lock, if it was taken
		if held {
			return &holder, nil
		}
	}
	return nil, nil
}

// dying reports whether the process was killed and has not ended. Only Linux shows
// that; elsewhere the process counts as alive.
func dying(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch key {
		case "State":
			if strings.HasPrefix(value, "Z") || strings.HasPrefix(value, "X") {
				return true
			}
		case "SigPnd", "ShdPnd":
			pending, err := strconv.ParseUint(value, 16, 64)
			if err == nil && pending>>(unix.SIGKILL-1)&1 == 1 {
				return true
			}
		}
	}
	return false
}
