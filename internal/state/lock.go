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
	Path string // the lock file
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("%s: the state directory is in use by %v; one daemon per state directory: stop that one, or set another state_dir", e.Path, e.Holder)
}

// lockPatiently locks the directory. It waits while the process that holds it is
// dying: a killed process keeps its locks while it hangs in a frozen file system.
func lockPatiently(ctx context.Context, d Dir, log *zap.Logger) error {
	said := time.Time{}
	for {
		err := tellIfSlow(log, d.Path(), func() error { return d.Lock(time.Now()) })
		var locked *LockedError
		if !errors.As(err, &locked) || !locked.Dying {
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
// drops a flock with its last descriptor. The file itself stays, because removing it
// would let two processes lock two files of one name. An operator may still remove
// it, and even then two processes must not share a lease: so the directory is locked
// as well.
type dirLock struct{ file, dir *os.File }

func lockDir(d *osDir, now time.Time) (_ *dirLock, err error) {
	var f *os.File
	for {
		if f, _, err = d.openRegular(lockName, os.O_RDWR); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		if f, err = d.createFile(lockName); !errors.Is(err, fs.ErrExist) {
			break // otherwise another process made it meanwhile
		}
	}
	if err != nil {
		return nil, err
	}
	l := &dirLock{file: f}
	if l.dir, err = d.root.Open("."); err != nil {
		return nil, errors.Join(fileError(d.path, "cannot open the directory", err), f.Close())
	}
	if err := l.acquire(d.file(lockName), now); err != nil {
		return nil, errors.Join(err, f.Close(), l.dir.Close())
	}
	return l, nil
}

func (l *dirLock) acquire(path string, now time.Time) error {
	err := flockPatiently(l.file)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return &LockedError{Holder: readHolder(l.file), Path: path}
	}
	if err != nil {
		return fileError(path, "cannot lock it", err)
	}
	// Not every file system can lock a directory. Then only the file is locked.
	if errors.Is(flockPatiently(l.dir), unix.EWOULDBLOCK) {
		return &LockedError{Holder: readHolder(l.file), Path: path}
	}
	record := strconv.Itoa(os.Getpid()) + " " + now.UTC().Format(time.RFC3339) + " " + pidNamespace()
	if _, err := l.file.WriteAt(fmt.Appendf(nil, "%-*s\n", lockRecordLen-1, record), 0); err != nil {
		return fileError(path, "cannot write the lock's holder", err)
	}
	return nil
}

// current returns an error if the lock file of the directory is no longer the one
// that is locked.
func (l *dirLock) current(root *os.Root) error {
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
func (l *dirLock) release() error { return errors.Join(l.dir.Close(), l.file.Close()) }

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

// Holder asks the lock and not the record, because the record survives a kill -9.
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
			holder = readHolder(f)
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
	return exiting(pid)
}

// exiting reports whether the kernel is ending the process: its files are being
// closed, and the fatal signal is no longer pending.
func exiting(pid int) bool {
	const flagsField, exitingFlag = 6, 0x4 // counted from the state, after the name; PF_EXITING of the kernel
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) <= flagsField {
		return false
	}
	flags, err := strconv.ParseUint(fields[flagsField], 10, 64)
	return err == nil && flags&exitingFlag != 0
}
