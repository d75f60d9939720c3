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

	"golang.org/x/sys/unix"
)

// candidate is a place where a client looks for the daemon's socket. Another user could have
// made dir to answer in the daemon's place, unless it is empty.
type candidate struct{ path, dir string }

// candidates returns the usual places. RUNTIME_DIRECTORY is not used: in a client it is the
// directory of the client's own unit.
func candidates(lookup Lookup, uid int) (all []candidate) {
	if dir := Absolute(lookup, "XDG_RUNTIME_DIR"); dir != "" {
		all = append(all, candidate{filepath.Join(dir, directoryName, socketName), filepath.Clean(dir)})
	}
	inTmp := InTmp(uid)
	return append(all, candidate{path: filepath.Join(systemSocketDir, socketName)}, candidate{inTmp, filepath.Dir(inTmp)})
}

// Find returns the socket that KAZAHANA_SOCKET names, else the first of the usual places that
// exists. It does not connect: if an existing socket does not answer, that is the error to
// report, and no reason to ask another daemon. The error lists every path tried, and wraps
// fs.ErrNotExist, or fs.ErrPermission if a path could not be read.
func Find(lookup Lookup, uid int) (string, error) {
	text, _ := lookup("KAZAHANA_SOCKET")
	if strings.Trim(text, " \t\r\n") == "" {
		return find(candidates(lookup, uid), uid, "start one (kazahanad serve), or name its socket in KAZAHANA_SOCKET")
	}
	path, err := Parse(text)
	if err != nil {
		return "", fmt.Errorf("KAZAHANA_SOCKET %w", err)
	}
	return find([]candidate{{path: path}}, uid, "KAZAHANA_SOCKET names this one place; is the daemon running (kazahanad serve)?")
}

func find(all []candidate, uid int, advice string) (string, error) {
	var tried []string
	var hint string
	var last error = fs.ErrNotExist
	for _, at := range all {
		if at.dir != "" {
			if err := trusted(at.dir, uid); err != nil && !errors.Is(err, fs.ErrNotExist) {
				tried = append(tried, fmt.Sprintf("%s (ignored: %v)", at.path, err))
				continue
			}
		}
		info, err := os.Stat(at.path)
		if err != nil {
			tried = append(tried, fmt.Sprintf("%s (%v)", at.path, cause(err)))
			if errors.Is(err, fs.ErrPermission) {
				last, hint = fs.ErrPermission, "; "+DenialHint(at.path)
			}
			continue
		}
		if info.Mode().Type() != fs.ModeSocket {
			return "", fmt.Errorf("%s exists and is not a socket", at.path)
		}
		return at.path, nil
	}
	return "", &NotFoundError{
		message: "no daemon's socket found; tried " + strings.Join(tried, ", ") + ": " + advice + strings.TrimSuffix(hint, "; "),
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

// trusted returns an error unless only the user can write to the directory. Another user
// could answer in the daemon's place there. fs.ErrNotExist is wrapped.
func trusted(dir string, uid int) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("cannot reach %s: %w", dir, cause(err))
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case !ok || int(owner.Uid) != uid:
		return fmt.Errorf("%s belongs to another user, %d, and this is user %d", dir, owner.Uid, uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written by others (mode %04o)", dir, info.Mode().Perm())
	}
	return nil
}

// DenialHint says what keeps this user from the socket, and what to do: a directory that it
// may not enter, else the socket. It is empty if that is not known.
func DenialHint(path string) string {
	dir, bit := closed(filepath.Dir(path)), fs.FileMode(0o010)
	if dir == "" {
		dir, bit = path, 0o020
	}
	info, err := os.Stat(dir)
	if err != nil && dir == path {
		dir, bit = filepath.Dir(path), 0o010
		info, err = os.Stat(dir)
	}
	if err != nil {
		return ""
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	group := strconv.FormatUint(uint64(owner.Gid), 10)
	if found, err := user.LookupGroupId(group); err == nil {
		group = found.Name
	}
	if owner.Gid != 0 && info.Mode().Perm()&bit != 0 {
		return fmt.Sprintf("%s belongs to group %s: a user of that group may connect (usermod -aG %s USER, then log in again)", dir, group, group)
	}
	// No user should join root's group for this, and joining another group would not help.
	advice := "give the daemon a group of its own with --socket-group and --socket-mode 0660"
	if info.IsDir() {
		advice = "open it with chmod o+x, or give the daemon another --socket"
	}
	return fmt.Sprintf("%s belongs to user %d and group %s with mode %04o: %s", dir, owner.Uid, group, info.Mode().Perm(), advice)
}

// closed is the outermost directory on the way to dir, dir included, that this process
// may not enter; "" if it may enter all.
func closed(dir string) (found string) {
	for at := dir; ; at = filepath.Dir(at) {
		if err := unix.Faccessat(unix.AT_FDCWD, at, unix.X_OK, unix.AT_EACCESS); errors.Is(err, fs.ErrPermission) {
			found = at
		}
		if at == filepath.Dir(at) {
			return found
		}
	}
}

// cause drops the operation and the path from the system's error.
func cause(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err
	}
	return err
}
