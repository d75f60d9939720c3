package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/folder"
)

// newSuffix marks a file under construction. A crash may leave one behind; it can be
// removed.
const newSuffix = ".new"

// maxFile is the largest file that Read accepts, far more than 256 services need.
const maxFile = 64 << 20

// osDir is a directory of the operating system. All access goes through root, so
// that a directory that was moved or replaced is never mistaken for its
// successor.
type osDir struct {
	path string
	root *os.Root
	lock *os.File // nil: not locked
	info os.FileInfo
}

// openDir opens a directory; with create it makes it first. remedy tells the operator,
// in errors, how to name another one.
func openDir(path string, create bool, remedy string) (*osDir, error) {
	if create {
		if _, err := folder.Make(path, 0o700); err != nil {
			return nil, fileError(path, "cannot make the directory", err)
		}
	}
	info, err := os.Stat(path) // follows a link: systemd makes one with DynamicUser=
	if err != nil {
		return nil, fileError(path, "cannot open the directory", err)
	}
	if !info.IsDir() {
		return nil, &FileError{Path: path, Problem: "is not a directory", Remedy: remedy}
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fileError(path, "cannot open the directory", err)
	}
	return newOSDir(path, root)
}

func newOSDir(path string, root *os.Root) (*osDir, error) {
	info, err := root.Stat(".")
	if err != nil {
		return nil, errors.Join(fileError(path, "cannot look at the directory", err), root.Close())
	}
	return &osDir{path: path, root: root, info: info}, nil
}

func owner(info fs.FileInfo) (uid, gid int) {
	st := info.Sys().(*syscall.Stat_t)
	return int(st.Uid), int(st.Gid)
}

func (d *osDir) Path() string { return d.path }

func (d *osDir) file(name string) string { return filepath.Join(d.path, name) }

// createFile makes a new file that only the daemon can read. If root makes it in
// another user's directory (`sudo kazahanad state ...`), it gives the file to that user:
// their daemon could not open it otherwise.
func (d *osDir) createFile(name string) (*os.File, error) {
	f, err := d.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fileError(d.file(name), "cannot create it", err)
	}
	if uid, gid := owner(d.info); os.Geteuid() == 0 && uid != 0 {
		if err := f.Chown(uid, gid); err != nil {
			return nil, errors.Join(fileError(d.file(name), "cannot give it to the directory's owner", err), f.Close(), d.root.Remove(name))
		}
	}
	return f, nil
}

// openRegular opens a regular file of the directory, and nothing else.
func (d *osDir) openRegular(name string, flag int) (*os.File, os.FileInfo, error) {
	info, err := d.root.Lstat(name)
	if err != nil {
		return nil, nil, fileError(d.file(name), "cannot look at it", err)
	}
	if !info.Mode().IsRegular() {
		return nil, nil, &FileError{Path: d.file(name), Problem: fmt.Sprintf("is not a regular file (%s)", info.Mode()), Remedy: "move it away"}
	}
	f, err := d.root.OpenFile(name, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0) // if it has become a pipe meanwhile
	if err != nil {
		return nil, nil, fileError(d.file(name), "cannot open it", err)
	}
	if info, err = f.Stat(); err != nil {
		return nil, nil, errors.Join(fileError(d.file(name), "cannot look at it", err), f.Close())
	}
	return f, info, nil
}

func (d *osDir) Read(name string) ([]byte, error) {
	f, _, err := d.openRegular(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fileError(d.file(name), "cannot read it", err)
	}
	if len(content) > maxFile {
		return nil, &FileError{Path: d.file(name), Problem: fmt.Sprintf("is larger than %d bytes: it is not a file of kazahana", maxFile), Remedy: "move it away"}
	}
	return content, nil
}

func (d *osDir) Replace(name string, content []byte) (err error) {
	temp := name + newSuffix
	if err := d.root.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fileError(d.file(temp), "cannot remove this left-over", err)
	}
	f, err := d.createFile(temp)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = d.root.Remove(temp)
		}
	}()
	if _, err = f.Write(content); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fileError(d.file(name), "cannot write it", err)
	}
	if err := d.root.Rename(temp, name); err != nil {
		return fileError(d.file(name), "cannot put the new file in its place", err)
	}
	return d.sync()
}

// sync makes names created in the directory durable.
func (d *osDir) sync() error {
	f, err := d.root.Open(".")
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil {
		return fileError(d.path, "cannot sync the directory", err)
	}
	return nil
}

func (d *osDir) Map(name string, writable bool) (*Mapping, error) {
	mode, prot := os.O_RDONLY, unix.PROT_READ
	if writable {
		mode, prot = os.O_RDWR, unix.PROT_READ|unix.PROT_WRITE
	}
	f, info, err := d.openRegular(name, mode)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping outlives the descriptor
	size := int(min(info.Size(), maxFile))
	if size < 8 || size%8 != 0 {
		return nil, damagedMarks(d.file(name), fmt.Sprintf("it has %d bytes", info.Size()))
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, &FileError{Path: d.file(name), Problem: "cannot map it into memory", Err: err, Remedy: "name a directory on a local file system"}
	}
	words := unsafe.Slice((*int64)(unsafe.Pointer(&mem[0])), size/8)
	if writable {
		// A store must not wait for swapped-out memory. Beyond the limit of locked
		// memory this fails, and the pages can be swapped.
		_ = unix.Mlock(mem)
	}
	return &Mapping{Words: words, ID: idOf(info), Unmap: func() error { return unix.Munmap(mem) }}, nil
}

func (d *osDir) Identify(name string) (FileID, error) {
	info, err := d.root.Lstat(name)
	if err != nil {
		return FileID{}, fileError(d.file(name), "cannot look at it", err)
	}
	return idOf(info), nil
}

func idOf(info fs.FileInfo) FileID {
	st := info.Sys().(*syscall.Stat_t)
	return FileID{Device: uint64(st.Dev), Inode: st.Ino} // Dev is narrower on macOS
}

func (d *osDir) Current() error {
	info, err := os.Stat(d.path)
	if err == nil && !os.SameFile(info, d.info) {
		err = errors.New("another directory has its name")
	}
	if err != nil {
		return &FileError{Path: d.path, Problem: "was removed or replaced while this process uses it", Err: pathCause(err)}
	}
	return nil
}

// pathCause is the error without the path.
func pathCause(err error) error {
	var cause *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &cause):
		return cause.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}

func (d *osDir) Sub(name string) (Dir, error) {
	path := d.file(name)
	if err := d.root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fileError(path, "cannot make the directory", err)
	}
	root, err := d.root.OpenRoot(name)
	if err != nil {
		return nil, fileError(path, "cannot open the directory", err)
	}
	return newOSDir(path, root)
}

func (d *osDir) Close() error {
	var err error
	if d.lock != nil {
		err = d.lock.Close()
		d.lock = nil
	}
	return errors.Join(err, d.root.Close())
}
