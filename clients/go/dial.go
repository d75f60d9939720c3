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
	"regexp"
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
	info, statErr := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return hopeless(path, "cannot connect to %s: %w", path, cause(path, err))
	case statErr == nil && info.Mode().Type() != fs.ModeSocket:
		return hopeless(path, "cannot connect to %s: %w; it is not a socket", path, cause(path, err))
	}
	err = fmt.Errorf("cannot connect to %s: %w; start the daemon with: kazahanad serve --socket %s", path, cause(path, err), path)
	return &DaemonUnavailableError{Socket: path, Err: err}
}

func hopeless(path, format string, args ...any) error {
	return &DaemonUnavailableError{Socket: path, Err: fmt.Errorf(format, args...), hopeless: true}
}

// cause drops the operation and the path from the system's error, and says who may connect.
func cause(path string, err error) error {
	var number syscall.Errno
	if errors.As(err, &number) {
		err = number
	}
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w%s", err, whoMay(path))
	}
	return err
}

// whoMay names the group of the socket, or of the directory that hides it.
func whoMay(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		path = filepath.Dir(path)
		info, err = os.Stat(path)
	}
	if err != nil {
		return ""
	}
	owner := info.Sys().(*syscall.Stat_t)
	group := fmt.Sprint(owner.Gid)
	if found, err := user.LookupGroupId(group); err == nil {
		group = found.Name
	}
	return fmt.Sprintf(" (%s belongs to user %d and group %s with mode %04o: add your user to the group that the daemon's --socket-group names)",
		path, owner.Uid, group, info.Mode().Perm())
}

const (
	blank = " \t\r\n"
	// maxSocketPath is the longest path that fits, with its closing zero, into the system's
	// sockaddr_un.
	maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1
)

// socketForm has the slashes of unix://, another scheme, and the path.
var socketForm = regexp.MustCompile(`(?is)^(?:unix:(//)?|([a-z][a-z0-9+.-]*://))?(.*)$`)

// parseSocket returns the path of a Unix socket that is written as PATH, unix:PATH or
// unix:///PATH. The path is taken as it is: relative to the working directory, with any
// percent sign. White space around the text does not count. Abstract sockets are refused:
// they have no permissions. The errors leave out the text, which may be a URL with a
// password. testdata/socket_addresses.json has what all clients must read.
func parseSocket(text string) (string, error) {
	parts := socketForm.FindStringSubmatch(strings.Trim(text, blank))
	slashes, other, path := parts[1], parts[2], parts[3]
	switch {
	case other != "":
		return "", errors.New("is not a Unix socket: write its path, or unix:///PATH")
	case path == "":
		return "", errors.New("is empty: write the path of a Unix socket")
	case slashes != "" && path[0] != '/':
		return "", errors.New("names a host: write unix:///PATH, with three slashes, or just the path")
	case path[0] == '@' || path[0] == 0:
		return "", errors.New("is an abstract socket, which every user can open: write a path")
	case strings.Contains(path, "\x00"):
		return "", errors.New("holds a zero byte: write the path of a Unix socket")
	case path == "~" || strings.HasPrefix(path, "~/"):
		return "", errors.New("begins with ~, which only a shell replaces: write the whole path")
	case strings.HasSuffix(path, "/"):
		return "", errors.New("is a directory: write the path of a Unix socket")
	case len(path) > maxSocketPath:
		return "", fmt.Errorf("is %d bytes long, and the system allows a socket's path %d", len(path), maxSocketPath)
	}
	return path, nil
}

// findSocket returns the socket that KAZAHANA_SOCKET names, else the first of the usual places
// that exists. It does not connect: if an existing socket does not answer, that is the error to
// report, and no reason to ask another daemon. RUNTIME_DIRECTORY is not used: it is the one of
// the caller's own unit.
func findSocket() (string, error) {
	if text := os.Getenv("KAZAHANA_SOCKET"); strings.Trim(text, blank) != "" {
		path, err := parseSocket(text)
		if err != nil {
			return "", hopeless("", "KAZAHANA_SOCKET %w", err)
		}
		return path, nil
	}
	inTmp := fmt.Sprintf("/tmp/kazahana-%d", os.Geteuid())
	places := []place{{path: "/run/kazahana/kazahanad.sock"}, {inTmp + "/kazahanad.sock", inTmp}}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		places = append([]place{{filepath.Join(dir, "kazahana", "kazahanad.sock"), filepath.Clean(dir)}}, places...)
	}
	return firstSocket(places)
}

// place is where a socket may be. Another user could have made dir to answer in the daemon's
// place, unless it is empty.
type place struct{ path, dir string }

func firstSocket(places []place) (string, error) {
	tried := errors.New("no daemon's socket found: start one (kazahanad serve), or name its socket in KAZAHANA_SOCKET; tried")
	for _, at := range places {
		info, err := os.Stat(at.path)
		why := distrust(at.dir)
		switch {
		case why != "":
			tried = fmt.Errorf("%w %s (ignored: %s %s)", tried, at.path, at.dir, why)
		case err == nil && info.Mode().Type() != fs.ModeSocket:
			return "", hopeless(at.path, "%s exists and is not a socket", at.path)
		case err == nil:
			return at.path, nil
		default:
			tried = fmt.Errorf("%w %s (%w)", tried, at.path, cause(at.path, err))
		}
	}
	return "", &DaemonUnavailableError{Err: tried, hopeless: errors.Is(tried, fs.ErrPermission)}
}

// distrust says why another user may answer in the daemon's place in the directory; "" if none
// can: su and sudo -E keep another user's XDG_RUNTIME_DIR, and every user can make a directory
// below /tmp.
func distrust(dir string) string {
	info, err := os.Lstat(dir)
	if err != nil {
		return "" // none is meant, or the attempt to use it tells why
	}
	owner := info.Sys().(*syscall.Stat_t)
	if info.IsDir() && int(owner.Uid) == os.Geteuid() && info.Mode().Perm()&0o022 == 0 {
		return ""
	}
	return fmt.Sprintf("belongs to user %d with mode %04o, and must be a directory that only user %d can write to",
		owner.Uid, info.Mode().Perm(), os.Geteuid())
}
