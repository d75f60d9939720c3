package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// openStateDir opens the state directory.
func openStateDir(path string, create bool, log *zap.Logger) (*osDir, error) {
	const remedy = "set state_dir to a directory"
	if path == "" {
		return nil, errors.New("the state directory has no name")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	d, err := openDir(path, create, remedy)
	if err != nil {
		return nil, err
	}
	if err := refuseOpen(d, os.Geteuid()); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if d.everybody() {
		log.Warn("every user may write to the state directory; run chmod o-w", zap.String("state_dir", path))
	}
	return d, nil
}

// refuseOpen refuses a state directory that every user may write to: any of them could forge
// a floor and a timeline. A shared place such as /tmp is therefore refused; in the daemon's
// own directory it is an oversight that only needs a warning.
func refuseOpen(d *osDir, uid int) error {
	if is, _ := owner(d.info); !d.everybody() || is == uid {
		return nil
	}
	return &FileError{Path: d.path, Problem: "every user may write to this directory, and it belongs to another user",
		Remedy: "set state_dir to a directory inside it (it is created with mode 0700), or run chmod o-w"}
}

// everybody reports whether every user may write to the directory.
func (d *osDir) everybody() bool { return d.info.Mode().Perm()&0o002 != 0 }

const liveRemedy = "set live_dir to a directory on a file system in memory (tmpfs), or to none"

// openLiveDir opens the live directory.
func openLiveDir(path string) (*osDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	uid := os.Geteuid()
	if err := checkLink(path, uid); err != nil {
		return nil, err
	}
	d, err := openDir(path, true, liveRemedy)
	if err != nil {
		return nil, err
	}
	if err := refuseLive(d, uid); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// refuseLive refuses a directory on a disk, which can hold up its files, or that others can
// change.
func refuseLive(d *osDir, user int) error {
	e := &FileError{Path: d.path, Remedy: liveRemedy}
	switch uid, _ := owner(d.info); {
	case !d.inMemory():
		e.Problem = "is not on a file system in memory: a frozen disk would stop the IDs, and a copy could be put back"
	case d.everybody():
		e.Problem, e.Remedy = "every user may write to it", "set live_dir to a directory inside it (it is created with mode 0700), or run chmod o-w"
	case uid != user:
		e.Problem = fmt.Sprintf("belongs to the user with UID %d", uid)
	default:
		return nil
	}
	return e
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
		if InMemory(existing) && unix.Faccessat(unix.AT_FDCWD, existing, unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil {
			return place
		}
	}
	return ""
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

// joinPath is filepath.Join for a file of a Dir.
func joinPath(d Dir, name string) string { return strings.TrimSuffix(d.Path(), "/") + "/" + name }
