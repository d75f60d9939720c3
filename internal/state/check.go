package state

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Check returns the error that Open would have in a process of that user, and whether a daemon
// has used the state directory. It changes nothing. The process that asks has that user's rights.
// live is "" for none. A directory that another process holds is only waited for at the start,
// and is no error here.
func Check(path, live string, uid int) (used bool, err error) {
	if path, err = filepath.Abs(path); err != nil {
		return false, err
	}
	disk, err := checkDir(path, "set state_dir to a directory")
	if err != nil {
		return false, err
	}
	folder := ""
	if disk != nil {
		defer disk.Close()
		if err := refuseOpen(disk, uid); err != nil {
			return false, err
		}
		file, content, err := readState(disk)
		if err == nil {
			err = disk.checkLock()
		}
		if used = content != nil; isMissing(err) || err == nil && !used {
			err = mayWrite(path, path) // a daemon that has run here before starts without
		}
		if err != nil {
			return used, err
		}
		folder = file.Folder
	}
	if live == "" {
		return used, nil
	}
	return used, checkLive(live, folder, uid)
}

// CheckDir returns the error of a process that keeps files in the directory, and makes it
// if it is missing.
func CheckDir(path, remedy string) error {
	d, err := checkDir(path, remedy)
	if err != nil || d == nil {
		return err
	}
	return errors.Join(mayWrite(path, path), d.Close())
}

// checkDir opens a directory. It returns nil where none is there yet and it can be made.
func checkDir(path, remedy string) (*osDir, error) {
	d, err := openDir(path, false, remedy)
	if !isMissing(err) {
		return d, err
	}
	if _, link := os.Lstat(path); link == nil {
		return nil, err // it leads nowhere
	}
	return nil, mayWrite(path, existing(path))
}

// mayWrite returns an error about path if this user may not make files in the directory.
func mayWrite(path, dir string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return fileError(path, "cannot be written", err)
	}
	return nil
}

func checkLive(path, folder string, uid int) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if err := checkLink(path, uid); err != nil {
		return err
	}
	base, err := checkDir(path, liveRemedy)
	if err != nil {
		return err
	}
	if base == nil {
		if base, err = openDir(existing(path), false, liveRemedy); err != nil {
			return err
		}
		defer base.Close()
		if !base.inMemory() {
			return refuseLive(base, uid)
		}
		return nil
	}
	defer base.Close()
	if err := refuseLive(base, uid); err != nil {
		return err
	}
	sub, err := openDir(filepath.Join(path, folder), false, liveRemedy)
	if isMissing(err) || folder == "" {
		err = mayWrite(path, path)
	} else if err == nil {
		err = errors.Join(mayWrite(sub.path, sub.path), sub.Close())
	}
	return err
}

// checkLock returns an error if the directory's lock cannot be taken, unless another
// process has it. It wraps fs.ErrNotExist if there is none.
func (d *osDir) checkLock() error {
	f, _, err := d.openRegular(lockName, os.O_RDWR)
	if err != nil {
		return err
	}
	return f.Close()
}
