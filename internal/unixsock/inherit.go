package unixsock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Inherit takes over a socket that another process, such as a service manager,
// has bound and listens on. Its path stays that one's: neither its permissions
// nor the path itself are touched, now or by Close, so that connections which
// come while nobody accepts wait for the next process. f is closed.
//
// It refuses what is no listening Unix stream socket with a path.
func Inherit(f *os.File) (*Listener, error) {
	defer f.Close()
	path, err := inheritedPath(int(f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("inherited descriptor %s: %w", f.Name(), err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("inherited socket %s: %w", path, unwrapOp(err))
	}
	// A listener that was made so leaves the file when it is closed.
	return &Listener{UnixListener: l.(*net.UnixListener)}, nil
}

func inheritedPath(fd int) (string, error) {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return "", fmt.Errorf("is no socket: %w", err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return "", err
	}
	local, ok := address.(*unix.SockaddrUnix)
	if !ok {
		return "", errors.New("is no Unix socket; a socket unit gives it as ListenStream=/PATH")
	}
	if kind != unix.SOCK_STREAM {
		return "", errors.New("is no stream socket; a socket unit gives it as ListenStream=/PATH")
	}
	if listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || listens == 0 {
		return "", errors.New("does not listen: it is one connection (Accept=yes?), and the daemon accepts them itself (Accept=no)")
	}
	if !filepath.IsAbs(local.Name) {
		return "", fmt.Errorf("has the address %q, and clients need the path of a file to connect to", local.Name)
	}
	return local.Name, nil
}
