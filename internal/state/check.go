package state

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/folder"
)

// Check returns the error that Open would have in a process of that user, and whether a daemon
// has used the state directory. It changes nothing. The process that asks has that user's rights.
// live is "" for none. A directory that another process holds is only waited for at the start,
// and is no error here.
func Check(path, live string, uid int) (used bool, err error) {
	identity, used, err := checkStateDir(path, uid)
	if err == nil && live != "" {
		err = checkLiveDir(live, identity, uid)
	}
	return used, err
}

func checkStateDir(path string, uid int) (identity string, used bool, err error) {
	d, err := openStateDir(path, false, uid)
	if isMissing(err) {
		return "", false, mayMake(path, err)
	}
	if err != nil {
		return "", false, err
	}
	defer d.Close()
	file, content, err := readState(d)
	used = content != nil
	if err == nil {
		err = d.checkLock()
	}
	if isMissing(err) || err == nil && !used { // a daemon that has run here before writes nothing at its start
		err = mayWrite(path, path)
	}
	return file.Folder, used, err
}

func checkLiveDir(path, identity string, uid int) error {
	d, err := openLiveDir(path, false, uid)
	switch {
	case isMissing(err) && !folder.InMemory(existing(path)):
		return onDisk(path)
	case isMissing(err):
		return mayMake(path, err)
	case err != nil:
		return err
	}
	defer d.Close()
	if own := d.file(identity); identity != "" && existing(own) == own {
		return mayWrite(own, own)
	}
	return mayWrite(path, path)
}

// CheckDir returns the error of a process that keeps files in the directory, and makes it
// if it is missing.
func CheckDir(path, remedy string) error {
	d, err := openDir(path, false, remedy)
	if isMissing(err) {
		return mayMake(path, err)
	}
	if err != nil {
		return err
	}
	return errors.Join(mayWrite(path, path), d.Close())
}

// mayMake returns an error about the missing directory if this user may not make it.
func mayMake(path string, missing error) error {
	if _, err := os.Lstat(path); err == nil {
		return missing // it is a link that leads nowhere
	}
	return mayWrite(path, existing(path))
}

// mayWrite returns an error about path if this user may not make files in the directory.
func mayWrite(path, dir string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return fileError(path, "cannot be written", err)
	}
	return nil
}

// existing is the directory that the path is in, or will be made in.
func existing(path string) string {
	for path != "/" && path != "." {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	return path
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
