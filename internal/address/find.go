package address

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Candidates returns the places where a client looks for the daemon's socket. explicit
// reports that KAZAHANA_SOCKET names the only one. RUNTIME_DIRECTORY is not used: in a
// client it is the directory of the client's own unit.
func Candidates(lookup Lookup, uid int) (paths []string, explicit bool) {
	if text, _ := lookup("KAZAHANA_SOCKET"); strings.TrimSpace(text) != "" {
		text = strings.TrimSpace(text)
		if path, err := Parse(text); err == nil {
			text = path
		}
		return []string{text}, true
	}
	if dir := Absolute(lookup, "XDG_RUNTIME_DIR"); dir != "" {
		paths = append(paths, filepath.Join(dir, directoryName, socketName))
	}
	return append(paths, filepath.Join(systemSocketDir, socketName), tmpSocket(uid)), false
}

// Find returns the first of Candidates that exists. It does not connect: if an existing
// socket does not answer, that is the error to report, and no reason to ask another
// daemon. The error lists every path tried, and wraps fs.ErrNotExist, or
// fs.ErrPermission if a path could not be read.
func Find(lookup Lookup, uid int) (string, error) {
	paths, explicit := Candidates(lookup, uid)
	if explicit {
		text, _ := lookup("KAZAHANA_SOCKET")
		if _, err := Parse(strings.TrimSpace(text)); err != nil {
			// The error omits the value: it may be a URL with a password.
			return "", fmt.Errorf("KAZAHANA_SOCKET %w", err)
		}
	}
	return find(paths, explicit, tmpSocket(uid), uid)
}

func find(paths []string, explicit bool, inTmp string, uid int) (string, error) {
	var tried, hint string
	var last error = fs.ErrNotExist
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			tried += fmt.Sprintf(", %s (%v)", path, cause(err))
			if errors.Is(err, fs.ErrPermission) {
				last, hint = fs.ErrPermission, "; "+DenialHint(path)
			}
			continue
		}
		if info.Mode().Type() != fs.ModeSocket {
			return "", fmt.Errorf("%s exists and is not a socket", path)
		}
		if path == inTmp {
			if err := trusted(filepath.Dir(path), uid); err != nil {
				return "", err
			}
		}
		return path, nil
	}
	advice := "start one (kazahanad serve), or name its socket in KAZAHANA_SOCKET"
	if explicit {
		advice = "KAZAHANA_SOCKET names this one place; is the daemon running (kazahanad serve)?"
	}
	return "", &NotFoundError{
		message: "no daemon's socket found; tried " + strings.TrimPrefix(tried, ", ") + ": " + advice + strings.TrimSuffix(hint, "; "),
		cause:   last,
	}
}

// NotFoundError is the error of Find if no candidate exists.
type NotFoundError struct {
	message string
	cause   error
}

func (e *NotFoundError) Error() string { return e.message }
func (e *NotFoundError) Unwrap() error { return e.cause }

// trusted refuses a directory below /tmp that another user could have put there
// to answer in the daemon's place.
func trusted(dir string, uid int) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("cannot reach %s: %w", dir, cause(err))
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory: its socket is not trusted", dir)
	case !ok || int(owner.Uid) != uid:
		return fmt.Errorf("%s belongs to another user: its socket is not trusted", dir)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written by others: its socket is not trusted", dir)
	}
	return nil
}

// DenialHint names the group that may open the socket, for a user who may not. It is
// empty if that is not known.
func DenialHint(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		// The directory's permissions hide even the socket's owner.
		path = filepath.Dir(path)
		if info, err = os.Stat(path); err != nil {
			return ""
		}
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	group := strconv.FormatUint(uint64(owner.Gid), 10)
	if found, err := user.LookupGroupId(group); err == nil {
		group = found.Name
	}
	if owner.Gid == 0 || info.Mode().Perm()&0o020 == 0 {
		// No user should join root's group for this, and joining another group would
		// not help.
		return fmt.Sprintf("%s belongs to user %d and group %s with mode %04o: give the daemon a group of its own with --socket-group and --socket-mode 0660",
			path, owner.Uid, group, info.Mode().Perm())
	}
	return fmt.Sprintf("%s belongs to group %s: a user of that group may connect (usermod -aG %s USER, then log in again)", path, group, group)
}

// cause drops the operation and the path from the system's error.
func cause(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err
	}
	return err
}
