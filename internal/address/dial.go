package address

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
)

// Dial connects to the daemon's socket at path or, if path is empty, to the first one
// found. The error explains why no daemon answers, and what to do.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	if path == "" {
		var err error
		if path, err = Find(os.LookupEnv, os.Geteuid()); err != nil {
			return nil, err
		}
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, explain(path, err)
	}
	return conn, nil
}

func explain(path string, err error) error {
	if call, ok := errors.AsType[*os.SyscallError](err); ok {
		err = call.Err // without the operation and the path
	}
	info, statErr := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("cannot connect to %s: %w; %s", path, err, DenialHint(path))
	case statErr == nil && info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("cannot connect to %s: it is not a socket (%w)", path, err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cannot connect to %s: it does not exist (%w); start the daemon with: kazahanad serve --socket %s", path, err, path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("cannot connect to %s: no daemon listens on it (%w); start it with: kazahanad serve --socket %s", path, err, path)
	}
	return fmt.Errorf("cannot connect to %s: %w", path, err)
}
