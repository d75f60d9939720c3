package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"syscall"
	"time"

	"github.com/kazahana/kazahana/internal/config"
	"github.com/kazahana/kazahana/internal/wire"
)

// clientFlags are common to the subcommands that ask a running daemon.
type clientFlags struct {
	Socket  string        `placeholder:"PATH" help:"The daemon's Unix socket, a path or a unix:///PATH URI (default $$KAZAHANA_SOCKET, else the first that exists of the usual places)."`
	Timeout time.Duration `default:"10s" help:"How long to wait for the answer."`
}

// answerGrace is how long a daemon that was told how long to wait may take to
// say that it did: it knows what it waited for.
const answerGrace = 2 * time.Second

// call asks the daemon once.
func (f *clientFlags) call(s *system, method string, target any, params ...any) error {
	return f.callWithin(s, f.Timeout, method, target, params...)
}

func (f *clientFlags) callWithin(s *system, limit time.Duration, method string, target any, params ...any) error {
	path, err := f.path(s)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return connectError(path, err)
	}
	client := wire.NewClient(conn)
	defer client.Close()
	if err := client.Call(ctx, method, target, params...); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("no answer from %s within %v", path, limit)
		}
		return err
	}
	return nil
}

func (f *clientFlags) path(s *system) (string, error) {
	if f.Socket == "" {
		return config.FindSocket(s.lookup, s.uid)
	}
	path, err := config.SocketPath(f.Socket)
	if err != nil {
		return "", usageError{fmt.Errorf("--socket: %q %w", f.Socket, err)}
	}
	return path, nil
}

// connectError says why nobody answers, and what helps.
func connectError(path string, err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("cannot connect to %s: permission denied; %s", path, config.DenialHint(path))
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cannot connect to %s: it does not exist; start the daemon with: kazahanad serve", path)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("cannot connect to %s: no daemon listens on it; start it with: kazahanad serve", path)
	}
	return fmt.Errorf("cannot connect to %s: %w", path, err)
}

// printJSON writes the value for programs.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
