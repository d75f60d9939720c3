package sqlitefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/folder"
)

// prepareFile makes sure that there is a file at path that may be a database, and creates
// it and its directory if there is none. It refuses an empty file: a database of this
// program never is empty, so it is a remnant or belongs to another program.
func (k *Kind) prepareFile(ctx context.Context, path string) error {
	err := CheckFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return k.createFile(ctx, path)
	}
	if info, stat := os.Stat(path); stat == nil && info.Mode().IsRegular() && info.Size() == 0 {
		return k.foreign("it is empty, so what it recorded is lost; if it never recorded anything, remove it and it will be created")
	}
	return err
}

// CheckFile returns why this user cannot use the file at path, without a look inside. The
// error wraps fs.ErrNotExist if there is none.
func CheckFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Another process made an entry that is no link between the two looks; createFile leaves
		// it in place.
		if entry, err := os.Lstat(path); err == nil && entry.Mode().Type() == fs.ModeSymlink {
			return errors.New("it is a symbolic link to a file that does not exist")
		}
		return err
	case err != nil:
		return err
	case info.IsDir():
		return errors.New("it is a directory; name a file in it")
	case !info.Mode().IsRegular():
		return fmt.Errorf("it is no regular file (%v)", info.Mode().Type())
	}
	return checkAccess(path)
}

// checkAccess finds out why SQLite will not be able to write, because SQLite does not
// report the reason. It must not open the file, see fillFile.
func checkAccess(path string) error {
	const readWrite = unix.R_OK | unix.W_OK
	if err := unix.Faccessat(unix.AT_FDCWD, path, readWrite, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("this user may not read and write it: %w", err)
	}
	dir := filepath.Dir(path)
	if err := unix.Faccessat(unix.AT_FDCWD, dir, readWrite|unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("this user may not write to its directory %s, where SQLite keeps its log: %w", dir, err)
	}
	return nil
}

// createFile makes a new database under another name and links it to path when it is
// complete. So no process ever sees an incomplete one, and of several processes that do
// this at once one wins.
func (k *Kind) createFile(ctx context.Context, path string) error {
	dir := filepath.Dir(path)
	if _, err := folder.Make(dir, 0o700); err != nil {
		return err
	}
	temp := fmt.Sprintf("%s.new-%08x", path, rand.Uint32())
	defer os.Remove(temp)
	if err := k.fillFile(ctx, temp); err != nil {
		return fmt.Errorf("a new database cannot be created: %w", err)
	}
	if err := os.Link(temp, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("a new database cannot be created: %w", err)
	}
	return syncDir(dir)
}

func (k *Kind) fillFile(ctx context.Context, temp string) error {
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	id, err := identityOf(temp)
	if err != nil {
		return err
	}
	s, err := Connect(ctx, temp)
	if err != nil {
		return err
	}
	if err := errors.Join(k.create(s, id), s.Close()); err != nil {
		return err
	}
	// Not earlier: closing any descriptor of a file drops the locks that SQLite holds on
	// it in this process.
	if f, err = os.OpenFile(temp, os.O_RDWR, 0); err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// watch remembers which files this process has open, to notice when their names lead to other
// files: the main file, the place, and the log. It must not open the first and the last itself,
// see fillFile.
type watch []watched

type watched struct {
	name string
	info os.FileInfo
}

// add adds a file that the connection has open, before anything is read from it.
func (w *watch) add(name string) error {
	info, err := os.Stat(name)
	if err == nil {
		*w = append(*w, watched{name, info})
	}
	return err
}

// check returns ErrMoved if a name leads to another file or to none.
func (w watch) check() error {
	for _, file := range w {
		if err := file.check(); err != nil {
			return err
		}
	}
	return nil
}

// check is watch.check of one file. Its inode cannot have been reused while it is open.
func (w watched) check() error {
	info, err := os.Stat(w.name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(info, w.info) {
		err = fmt.Errorf("%w (%s)", ErrMoved, filepath.Base(w.name))
	}
	return err
}
