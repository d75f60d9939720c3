// Package caller calls the daemon for the command, for benchmarks and for tests of other
// things than clients. A call has one attempt; Repeat is for those that may be repeated.
package caller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/address"
	"github.com/kazahana/kazahana/internal/wire"
)

// A Client calls a daemon over one connection, which it makes at the first call, and again
// when it is lost. Calls may be concurrent.
type Client struct {
	socket  string
	timeout time.Duration

	mu   sync.Mutex
	conn *wire.Client
}

// New returns a Client of the daemon at the socket or, if that is empty, of the first one
// found. A call takes the timeout at most.
func New(socket string, timeout time.Duration) *Client {
	return &Client{socket: socket, timeout: timeout}
}

// UnavailableError: no daemon answers.
type UnavailableError struct{ Err error }

func (e *UnavailableError) Error() string { return e.Err.Error() }
func (e *UnavailableError) Unwrap() error { return e.Err }

// Call calls a method: see wire.Client.Call. The error is a *wire.Error if the daemon
// answered with one, or did not answer in time; else an *UnavailableError, or a cancelled
// ctx's.
func (c *Client) Call(ctx context.Context, method string, result any, params ...any) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	conn, err := c.connect(ctx)
	if err == nil {
		err = conn.Call(ctx, method, result, params...)
	}
	var refusal *wire.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal):
		return refusal
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("%s: %w", method, context.Canceled)
	case ctx.Err() != nil, conn == nil && isTimeout(err):
		return wire.Errorf(wire.CodeTimeout, "no answer to %s from the daemon", method).With("waited_ms", time.Since(began).Milliseconds())
	case conn == nil || errors.Is(err, wire.ErrConnectionLost):
		return &UnavailableError{err}
	}
	return err
}

// isTimeout reports whether the time was over while the call connected: the error may say so a
// moment before the context does.
func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

func (c *Client) connect(ctx context.Context) (*wire.Client, error) {
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn != nil && conn.Err() == nil {
		return conn, nil
	}
	nc, err := address.Dial(ctx, c.socket)
	if err != nil {
		return nil, err
	}
	next := wire.NewClient(nc)
	c.mu.Lock()
	spare := c.conn
	if spare != nil && spare.Err() == nil { // another call was first, and uses it
		next, spare = spare, next
	}
	c.conn = next
	c.mu.Unlock()
	if spare != nil {
		_ = spare.Close()
	}
	return next, nil
}

// Close ends the connection.
func (c *Client) Close() error {
	c.mu.Lock()
	conn := c.conn
	c.conn = nil
	c.mu.Unlock()
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// HasCode reports whether the daemon answered with one of the codes.
func HasCode(err error, codes ...wire.Code) bool {
	refusal, ok := errors.AsType[*wire.Error](err)
	return ok && slices.Contains(codes, refusal.Code)
}

// repeatPause is the wait before a call is repeated.
const repeatPause = 100 * time.Millisecond

// Unanswered reports whether a repeated call may succeed: there was no answer, or
// the daemon did not know the outcome yet.
func Unanswered(err error) bool {
	if _, ok := errors.AsType[*wire.Error](err); ok {
		return HasCode(err, wire.CodeStoreUnavailable, wire.CodeShuttingDown, wire.CodeOverloaded, wire.CodeTimeout)
	}
	return err != nil
}

// Repeat calls until there is an answer, or ctx is done. The call must be idempotent.
func Repeat(ctx context.Context, call func() error) error {
	for {
		err := call()
		if !Unanswered(err) {
			return err
		}
		select {
		case <-time.After(repeatPause):
		case <-ctx.Done():
			return err
		}
	}
}
