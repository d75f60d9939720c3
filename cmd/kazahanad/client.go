package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/kazahana/kazahana/internal/address"
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
	return callAt(ctx, path, method, target, params...)
}

// callAt asks the daemon at a path once, by a connection of its own. The context
// has a deadline.
func callAt(ctx context.Context, path, method string, target any, params ...any) error {
	deadline, _ := ctx.Deadline()
	limit := time.Until(deadline).Round(time.Millisecond)
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return unreachableError{connectError(path, err)}
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

// unreachableError: the daemon was not asked anything.
type unreachableError struct{ error }

func (e unreachableError) Unwrap() error { return e.error }

// unreachable reports whether a call failed before anything was sent.
func unreachable(err error) bool {
	var u unreachableError
	return errors.As(err, &u)
}

// unanswered reports whether a call may be answered when it is repeated: it was
// not, or by a daemon that could not tell yet.
func unanswered(err error) bool {
	var refusal *wire.Error
	if errors.As(err, &refusal) {
		return slices.Contains([]wire.Code{
			wire.CodeStoreUnavailable, wire.CodeShuttingDown, wire.CodeOverloaded, wire.CodeTimeout,
		}, refusal.Code)
	}
	var usage usageError
	return err != nil && !errors.As(err, &usage)
}

// repeatPause is how long to wait before a call is repeated.
const repeatPause = 100 * time.Millisecond

// repeat calls again and again as long as the outcome is one to repeat for and ctx
// is not done. What is called must do no harm when it is carried out twice.
func repeat(ctx context.Context, again func(error) bool, call func() error) error {
	for {
		err := call()
		if !again(err) {
			return err
		}
		select {
		case <-time.After(repeatPause):
		case <-ctx.Done():
			return err
		}
	}
}

func (f *clientFlags) path(s *system) (string, error) {
	if f.Socket == "" {
		return address.Find(s.lookup, s.uid)
	}
	path, err := address.Parse(f.Socket)
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
		return fmt.Errorf("cannot connect to %s: permission denied; %s", path, address.DenialHint(path))
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
