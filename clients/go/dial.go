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
	"strconv"
	"strings"
	"syscall"
)

// dialSocket connects to the socket that find finds.
func dialSocket(find func() (string, error)) dialer {
	return func(ctx context.Context) (net.Conn, error) {
		path, err := find()
		if err != nil {
			return nil, err
		}
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return nil, unreachable(path, err)
		}
		return conn, nil
	}
}

// unreachable explains why no daemon answers, and what to do.
func unreachable(path string, err error) error {
	e := &DaemonUnavailableError{Socket: path, Err: fmt.Errorf("cannot connect to %s: %w", path, cause(err))}
	info, statErr := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		e.Err, e.hopeless = fmt.Errorf("%w; %s", e.Err, denialHint(path)), true
	case statErr == nil && info.Mode().Type() != fs.ModeSocket:
		e.Err, e.hopeless = fmt.Errorf("%w; it is not a socket", e.Err), true
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		e.Err = fmt.Errorf("%w; start the daemon with: kazahanad serve --socket %s", e.Err, path)
	}
	return e
}

// cause drops the operation and the path from the system's error.
func cause(err error) error {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number
	}
	return err
}

// maxSocketPath is the longest path that fits, with its closing zero, into the system's
// sockaddr_un.
const maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1

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
	case len(path) > maxSocketPath:
		return "", fmt.Errorf("is %d bytes long, and the system allows a socket's path %d", len(path), maxSocketPath)
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
			return "", hopeless("KAZAHANA_SOCKET %w", err)
		}
		return path, nil
	}
	inTmp := fmt.Sprintf("/tmp/kazahana-%d/kazahanad.sock", os.Getuid())
	paths := []string{"/run/kazahana/kazahanad.sock", inTmp}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		paths = append([]string{filepath.Join(dir, "kazahana", "kazahanad.sock")}, paths...)
	}
	return firstSocket(paths, inTmp)
}

func hopeless(format string, args ...any) error {
	return &DaemonUnavailableError{Err: fmt.Errorf(format, args...), hopeless: true}
}

func firstSocket(paths []string, inTmp string) (string, error) {
	tried := errors.New("no daemon's socket found: start one (kazahanad serve), or name its socket in KAZAHANA_SOCKET; tried")
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case err == nil && info.Mode().Type() != fs.ModeSocket:
			return "", hopeless("%s exists and is not a socket", path)
		case err == nil && path == inTmp:
			return path, trusted(filepath.Dir(path))
		case err == nil:
			return path, nil
		}
		tried = fmt.Errorf("%w %s (%w)", tried, path, cause(err))
		if errors.Is(err, fs.ErrPermission) {
			tried = fmt.Errorf("%w: %s", tried, denialHint(path))
		}
	}
	return "", &DaemonUnavailableError{Err: tried, hopeless: errors.Is(tried, fs.ErrPermission)}
}

// trusted refuses a directory below /tmp that another user could have put there to answer
// in the daemon's place.
func trusted(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return hopeless("cannot reach %s: %w", dir, cause(err))
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(owner.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return hopeless("%s is not a directory that only this user can write: its socket is not trusted", dir)
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
