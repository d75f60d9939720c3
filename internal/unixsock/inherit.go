package unixsock

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Inherit takes over a listening socket of another process, such as a service manager.
// The path stays that process's: neither Inherit nor Close changes it or its
// permissions, so that connections wait for the next process while none accepts them.
// f is closed.
//
// It refuses anything but a listening Unix stream socket with a path.
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
	inherited := &Listener{UnixListener: l.(*net.UnixListener)} // Close does not remove the file
	// The path may lead elsewhere in this process's view of the file system.
	if found, err := os.Lstat(path); err == nil && found.Mode().Type() == fs.ModeSocket {
		inherited.bound = found
	}
	return inherited, nil
}

func inheritedPath(fd int) (string, error) {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return "", fmt.Errorf("is not a socket: %w", err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return "", err
	}
	local, ok := address.(*unix.SockaddrUnix)
	if !ok {
		return "", errors.New("is not a Unix socket; a socket unit gives it as ListenStream=/PATH")
	}
	if kind != unix.SOCK_STREAM {
		return "", errors.New("is not a stream socket; a socket unit gives it as ListenStream=/PATH")
	}
	if listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || listens == 0 {
		return "", errors.New("does not listen: it is one connection (Accept=yes?), and the daemon accepts them itself (Accept=no)")
	}
	if !filepath.IsAbs(local.Name) {
		return "", fmt.Errorf("has the address %q, and clients need the path of a file to connect to", local.Name)
	}
	return local.Name, nil
}
