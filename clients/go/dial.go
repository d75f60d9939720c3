package kazahana

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"github.com/kazahana/kazahana/internal/address"
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
			if path, err = address.Find(os.LookupEnv, os.Getuid()); err != nil {
				var none *address.NotFoundError
				if !errors.As(err, &none) || errors.Is(err, fs.ErrPermission) {
					err = hopeless{err}
				}
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
	var call *os.SyscallError
	if errors.As(err, &call) {
		err = call.Err // without the operation and the path
	}
	info, statErr := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return hopeless{fmt.Errorf("cannot connect to %s: %w; %s", path, err, address.DenialHint(path))}
	case statErr == nil && info.Mode().Type() != fs.ModeSocket:
		return hopeless{fmt.Errorf("cannot connect to %s: it is not a socket (%w)", path, err)}
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cannot connect to %s: it does not exist (%w); start the daemon with: kazahanad serve --socket %s", path, err, path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("cannot connect to %s: no daemon listens on it (%w); start it with: kazahanad serve --socket %s", path, err, path)
	}
	return fmt.Errorf("cannot connect to %s: %w", path, err)
}
