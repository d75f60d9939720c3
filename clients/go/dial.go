package kazahana

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// errHopeless marks failures that do not end by waiting.
var errHopeless = errors.New("waiting cannot help")

// hopeless is an error that wraps errHopeless.
type hopeless struct{ error }

func (e hopeless) Unwrap() error        { return e.error }
func (e hopeless) Is(target error) bool { return target == errHopeless }

// dialSocket connects to the socket at path or, if path is empty, to the first one found.
func dialSocket(path string) dialer {
	return func(ctx context.Context) (net.Conn, error) {
		path := path
		if path == "" {
			var err error
			if path, err = findSocket(); err != nil {
				return nil, &DaemonUnavailableError{Err: err}
			}
		}
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return nil, &DaemonUnavailableError{Socket: path, Err: connectError(path, err)}
		}
		return conn, nil
	}
}

// dialWith connects with the user's own function.
func dialWith(dial func(context.Context) (net.Conn, error)) dialer {
	return func(ctx context.Context) (net.Conn, error) {
		conn, err := dial(ctx)
		if err != nil {
			return nil, &DaemonUnavailableError{Err: err}
		}
		return conn, nil
	}
}

// connectError explains why no daemon answers, and what to do.
func connectError(path string, err error) error {
	err = cause(err)
	info, statErr := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return hopeless{fmt.Errorf("cannot connect to %s: %w; %s", path, err, denialHint(path))}
	case statErr == nil && info.Mode().Type() != fs.ModeSocket:
		return hopeless{fmt.Errorf("cannot connect to %s: it is not a socket (%w)", path, err)}
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cannot connect to %s: it does not exist (%w); start the daemon with: kazahanad serve --socket %s", path, err, path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("cannot connect to %s: no daemon listens on it (%w); start it with: kazahanad serve --socket %s", path, err, path)
	}
	return fmt.Errorf("cannot connect to %s: %w", path, err)
}

// cause drops the operation and the path from the system's error.
func cause(err error) error {
	var call *os.SyscallError
	var path *fs.PathError
	switch {
	case errors.As(err, &call):
		return call.Err
	case errors.As(err, &path):
		return path.Err
	}
	return err
}

// maxSocketPath is the longest path that fits, with its closing zero, into the system's
// sockaddr_un.
func maxSocketPath() int {
	if runtime.GOOS == "linux" {
		return 107
	}
	return 103
}

// parseSocket returns the path of a Unix socket that is written as a path or as a
// unix:///path URI. Abstract sockets are refused: they have no permissions.
func parseSocket(text string) (path string, err error) {
	path = strings.TrimPrefix(text, "unix:")
	if uri := strings.TrimPrefix(path, "//"); path != text && uri != path {
		if path = uri; !strings.HasPrefix(path, "/") {
			return "", errors.New("names a host: write unix:///PATH, with three slashes, or just the path")
		}
	}
	switch {
	case path == "":
		return "", errors.New("is empty: write the path of a Unix socket")
	case strings.Contains(path, "://"):
		return "", errors.New("is not a Unix socket: write its path, or unix:///PATH")
	case strings.HasPrefix(path, "@") || strings.HasPrefix(path, "\x00"):
		return "", errors.New("is an abstract socket, which every user can open: write a path")
	case strings.HasSuffix(path, "/"):
		return "", errors.New("is a directory: write the path of a Unix socket")
	case len(path) > maxSocketPath():
		return "", fmt.Errorf("is %d bytes long, and the system allows a socket's path %d", len(path), maxSocketPath())
	}
	return path, nil
}

// findSocket returns the first of the usual places that exists. It does not connect: if
// an existing socket does not answer, that is the error to report, and no reason to ask
// another daemon. RUNTIME_DIRECTORY is not used: it is the one of the caller's own unit.
func findSocket() (string, error) {
	if text := strings.TrimSpace(os.Getenv("KAZAHANA_SOCKET")); text != "" {
		path, err := parseSocket(text)
		if err != nil {
			// The error omits the value: it may be a URL with a password.
			return "", hopeless{fmt.Errorf("KAZAHANA_SOCKET %w", err)}
		}
		return firstSocket([]string{path}, "", "KAZAHANA_SOCKET names this one place; is the daemon running (kazahanad serve)?")
	}
	var paths []string
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		paths = append(paths, filepath.Join(dir, "kazahana", "kazahanad.sock"))
	}
	inTmp := fmt.Sprintf("/tmp/kazahana-%d/kazahanad.sock", os.Getuid())
	return firstSocket(append(paths, "/run/kazahana/kazahanad.sock", inTmp), inTmp, "start one (kazahanad serve), or name its socket in KAZAHANA_SOCKET")
}

func firstSocket(paths []string, inTmp, advice string) (string, error) {
	var tried []string
	var hint string
	var last error = fs.ErrNotExist
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case err == nil && info.Mode().Type() != fs.ModeSocket:
			return "", hopeless{fmt.Errorf("%s exists and is not a socket", path)}
		case err == nil && path == inTmp:
			return path, trusted(filepath.Dir(path))
		case err == nil:
			return path, nil
		case errors.Is(err, fs.ErrPermission):
			last, hint = fs.ErrPermission, "; "+denialHint(path)
		}
		tried = append(tried, fmt.Sprintf("%s (%v)", path, cause(err)))
	}
	err := error(&notFoundError{fmt.Sprintf("no daemon's socket found; tried %s: %s%s", strings.Join(tried, ", "), advice, strings.TrimSuffix(hint, "; ")), last})
	if last == fs.ErrPermission {
		err = hopeless{err}
	}
	return "", err
}

// notFoundError wraps its cause without repeating it.
type notFoundError struct {
	text  string
	cause error
}

func (e *notFoundError) Error() string { return e.text }
func (e *notFoundError) Unwrap() error { return e.cause }

// trusted refuses a directory below /tmp that another user could have put there to answer
// in the daemon's place.
func trusted(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return hopeless{fmt.Errorf("cannot reach %s: %w", dir, cause(err))}
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(owner.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return hopeless{fmt.Errorf("%s is not a directory that only this user can write: its socket is not trusted", dir)}
	}
	return nil
}

// denialHint names the group that may open the socket, for a user who may not.
func denialHint(path string) string {
	info, err := os.Stat(path)
	if err != nil { // the directory's permissions hide even the socket's owner
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
		// No user should join root's group, and joining another would not help.
		return fmt.Sprintf("%s belongs to user %d and group %s with mode %04o: give the daemon a group of its own with --socket-group and --socket-mode 0660",
			path, owner.Uid, group, info.Mode().Perm())
	}
	return fmt.Sprintf("%s belongs to group %s: a user of that group may connect (usermod -aG %s USER, then log in again)", path, group, group)
}
