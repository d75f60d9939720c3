package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/folder"
)

// openStateDir opens the state directory for a process of that user. It refuses one that every
// user may write to: any of them could forge a floor and a timeline. A shared place such as /tmp
// is therefore refused; in the user's own directory it is an oversight that only needs a warning.
func openStateDir(path string, create bool, user int) (*osDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	d, err := openDir(path, create, "set state_dir to a directory")
	if err != nil {
		return nil, err
	}
	if uid, _ := owner(d.info); d.everybody() && uid != user {
		return nil, errors.Join(&FileError{Path: d.path, Problem: "every user may write to this directory, and it belongs to another user",
			Remedy: "set state_dir to a directory inside it (it is created with mode 0700), or run chmod o-w"}, d.Close())
	}
	return d, nil
}

// everybody reports whether every user may write to the directory.
func (d *osDir) everybody() bool { return d.info.Mode().Perm()&0o002 != 0 }

const liveRemedy = "set live_dir to a directory on a file system in memory (tmpfs), or to none"

// onDisk is the error about a live directory on a disk, which can hold up its files.
func onDisk(path string) error {
	return &FileError{Path: path, Problem: "is not on a file system in memory: a frozen disk would stop the IDs, and a copy could be put back", Remedy: liveRemedy}
}

// openLiveDir opens the live directory for a process of that user. It refuses one on a disk, or
// that others can change.
func openLiveDir(path string, create bool, user int) (*osDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := checkLink(path, user); err != nil {
		return nil, err
	}
	d, err := openDir(path, create, liveRemedy)
	if err != nil {
		return nil, err
	}
	switch uid, _ := owner(d.info); {
	case !folder.InMemory(d.path):
		err = onDisk(d.path)
	case d.everybody():
		err = &FileError{Path: d.path, Problem: "every user may write to it", Remedy: "set live_dir to a directory inside it (it is created with mode 0700), or run chmod o-w"}
	case uid != user:
		err = &FileError{Path: d.path, Problem: fmt.Sprintf("belongs to the user with UID %d", uid), Remedy: liveRemedy}
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// checkLink refuses a symbolic link that another user made, as any user can in
// /dev/shm. Links of root are allowed: systemd makes some.
func checkLink(path string, user int) error {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		return nil // opening it reports other errors
	}
	uid, _ := owner(info)
	if uid == 0 || uid == user {
		return nil
	}
	return &FileError{Path: path, Problem: fmt.Sprintf("is a symbolic link of the user with UID %d", uid), Remedy: liveRemedy}
}

// ChooseLive returns the first place on a file system in memory that exists or can be
// made, and that this process may write to; "" if there is none.
func ChooseLive(places []string) string {
	for _, place := range places {
		existing := existing(place)
		if folder.InMemory(existing) && unix.Faccessat(unix.AT_FDCWD, existing, unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil {
			return place
		}
	}
	return ""
}

// joinPath is filepath.Join for a file of a Dir.
func joinPath(d Dir, name string) string { return strings.TrimSuffix(d.Path(), "/") + "/" + name }
