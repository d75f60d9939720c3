// Package folder makes directories with the modes that they are meant to have, and says of others
// whether they are in memory, and which one keeps a group from a file.
package folder

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Make makes the directory with the mode, and its missing parents with mode 0755, under any
// umask: others must reach a socket beside a directory of ours. It returns the directories
// that it made. A directory that exists stays as it is.
func Make(path string, mode fs.FileMode) (made []string, err error) {
	if info, err := os.Stat(path); err == nil {
		if !info.IsDir() {
			return nil, &fs.PathError{Op: "mkdir", Path: path, Err: syscall.ENOTDIR}
		}
		return nil, nil
	}
	if parent := filepath.Dir(path); parent != path {
		if made, err = Make(parent, 0o755); err != nil {
			return made, err
		}
	}
	if err := os.Mkdir(path, mode); err != nil {
		if info, statErr := os.Stat(path); errors.Is(err, fs.ErrExist) && statErr == nil && info.IsDir() {
			return made, nil // another process was faster
		}
		return made, err
	}
	setMode(path, mode)
	return append(made, path), nil
}

// setMode gives the directory, which was made a moment ago, the bits that the umask took away.
// A user who may write to its parent can have put a link in its place meanwhile, which root
// must not follow. It fails only on a file system that has no modes, which is no reason to stop.
func setMode(path string, mode fs.FileMode) {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer dir.Close()
	if info, err := dir.Stat(); err == nil && mode&^info.Mode() != 0 {
		_ = dir.Chmod(mode | info.Mode()&fs.ModeSetgid)
	}
}

// Barrier returns the first directory on the way to the file that the group may not pass, and
// its mode; "" if there is none, or if an access control list decides.
func Barrier(path string, gid uint32) (dir string, mode fs.FileMode) {
	resolved, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", 0
	}
	if resolved, err = filepath.Abs(resolved); err != nil {
		return "", 0
	}
	for at := resolved; ; at = filepath.Dir(at) {
		var info unix.Stat_t
		if unix.Stat(at, &info) != nil || hasACL(at) {
			return "", 0
		}
		needed := uint32(0o001)
		if info.Gid == gid {
			needed = 0o010
		}
		if uint32(info.Mode)&needed == 0 {
			dir, mode = at, fs.FileMode(info.Mode&0o777)
		}
		if at == filepath.Dir(at) {
			return dir, mode
		}
	}
}
