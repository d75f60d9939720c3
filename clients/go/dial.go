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

var schemeStart = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://`)

// parseSocket returns the path of a Unix socket that is written as PATH, unix:PATH or
// unix:///PATH. The path is taken as it is: relative to the working directory, with any
// percent sign. White space around the text does not count. Abstract sockets are refused:
// they have no permissions. The errors leave out the text, which may be a URL with a
// password. testdata/socket_addresses.json has what all clients must read.
func parseSocket(text string) (string, error) {
	path := strings.Trim(text, " \t\r\n")
	if schemeStart.MatchString(path) && !isUnixURI(path) {
		return "", errors.New("is not a Unix socket: write its path, or unix:///PATH")
	}
	if isUnixURI(path) {
		path = path[len("unix:"):]
		if rest, ok := strings.CutPrefix(path, "//"); ok {
			if path = rest; rest != "" && rest[0] != '/' {
				return "", errors.New("names a host: write unix:///PATH, with three slashes, or just the path")
			}
		}
	}
	switch {
	case path == "":
		return "", errors.New("is empty: write the path of a Unix socket")
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

func isUnixURI(text string) bool {
	return len(text) >= len("unix:") && strings.EqualFold(text[:len("unix:")], "unix:")
}

const blank = " \t\r\n"

// findSocket returns the socket that KAZAHANA_SOCKET names, else the first of the usual places
// that exists. It does not connect: if an existing socket does not answer, that is the error to
// report, and no reason to ask another daemon. RUNTIME_DIRECTORY is not used: it is the one of
// the caller's own unit.
func findSocket() (string, error) {
	if text := os.Getenv("KAZAHANA_SOCKET"); strings.Trim(text, blank) != "" {
		path, err := parseSocket(text)
		if err != nil {
			return "", hopeless("KAZAHANA_SOCKET %w", err)
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

func hopeless(format string, args ...any) error {
	return &DaemonUnavailableError{Err: fmt.Errorf(format, args...), hopeless: true}
}

// place is where a socket may be. Another user could have made dir to answer in the daemon's
// place, unless it is empty.
type place struct{ path, dir string }

func firstSocket(places []place) (string, error) {
	tried := errors.New("no daemon's socket found: start one (kazahanad serve), or name its socket in KAZAHANA_SOCKET; tried")
	for _, at := range places {
		if why := distrust(at.dir); why != "" {
			tried = fmt.Errorf("%w %s (ignored: %s %s)", tried, at.path, at.dir, why)
			continue
		}
		info, err := os.Stat(at.path)
		switch {
		case err == nil && info.Mode().Type() != fs.ModeSocket:
			return "", hopeless("%s exists and is not a socket", at.path)
		case err == nil:
			return at.path, nil
		}
		tried = fmt.Errorf("%w %s (%w)", tried, at.path, cause(err))
		if errors.Is(err, fs.ErrPermission) {
			tried = fmt.Errorf("%w: %s", tried, denialHint(at.path))
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
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return "is not a directory"
	case !ok || int(owner.Uid) != os.Geteuid():
		return fmt.Sprintf("belongs to another user, %d, and this is user %d", owner.Uid, os.Geteuid())
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Sprintf("can be written by others (mode %04o)", info.Mode().Perm())
	}
	return ""
}

// denialHint says what keeps this user from the socket, and what to do: a directory that it
// may not enter, else the socket. It is empty if that is not known.
func denialHint(path string) string {
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

// closed is the outermost directory on the way to dir, or dir itself, that this process
// may not enter; "" if it may enter all.
func closed(dir string) (found string) {
	for at := dir; ; at = filepath.Dir(at) {
		if err := syscall.Access(at, 1); errors.Is(err, fs.ErrPermission) {
			found = at
		}
		if at == filepath.Dir(at) {
			return found
		}
	}
}
