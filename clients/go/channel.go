package kazahana

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// firstConnect is how long to wait for a daemon that was never reached: long enough
	// for one that is starting, and short enough to report a missing one soon.
	firstConnect = time.Second
	// The pause before a connection is tried again doubles from one to the other.
	minPause = 5 * time.Millisecond
	maxPause = 200 * time.Millisecond
)

// dialer connects to the daemon. Its errors are *DaemonUnavailableErrors, and hopeless if
// waiting cannot help.
type dialer func(context.Context) (net.Conn, error)

// channel keeps one connection, and makes another whenever it is lost.
type channel struct {
	dial   dialer
	single bool                              // no call makes a second attempt
	told   func(*wire.Client, *wire.Request) // called for messages that are not answers; may be nil
	ctx    context.Context                   // ends with the channel
	end    context.CancelFunc
	work   sync.WaitGroup // openings

	mu           sync.Mutex
	conn         *wire.Client
	former       map[*wire.Client]struct{} // stopping daemons still answer what they began
	opening      *opening
	failures     int // in a row, since the last answer
	failingSince time.Time
	connected    bool // ever
}

// opening is an attempt to connect, shared by all calls that need a connection.
type opening struct {
	done chan struct{} // closed when the others are set
	conn *wire.Client
	err  error
}

func newChannel(dial dialer, single bool, told func(*wire.Client, *wire.Request)) *channel {
	ctx, end := context.WithCancel(context.Background())
	return &channel{dial: dial, single: single, told: told, ctx: ctx, end: end, former: map[*wire.Client]struct{}{}}
}

// close fails the calls under way with ErrClosed, and returns when the channel's
// goroutines have ended.
func (c *channel) close() {
	c.mu.Lock()
	c.end() // under the lock: no opening begins after it
	c.mu.Unlock()
	c.work.Wait()
	c.mu.Lock()
	conn, former := c.conn, c.former
	c.conn, c.former = nil, nil
	c.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	for conn := range former {
		_ = conn.Close()
	}
}

// request is a call of a method.
type request struct {
	method string
	params []any
	// options returns the last parameter for the time that the daemon may take.
	// Optional.
	options func(time.Duration) any
}

// call repeats the request until there is an answer, or the time is up. It is used only
// for methods that can be repeated without harm.
func (c *channel) call(ctx context.Context, timeout time.Duration, r request, result any) error {
	return c.do(ctx, timeout, r.method, func(ctx context.Context, conn *wire.Client) error {
		params := r.params
		if r.options != nil {
			deadline, _ := ctx.Deadline()
			params = append(params[:len(params):len(params)], r.options(time.Until(deadline)))
		}
		return conn.Call(ctx, r.method, result, params...)
	})
}

// once calls a method over one connection and no other.
func (c *channel) once(ctx context.Context, conn *wire.Client, method string, result any, params ...any) error {
	began := time.Now()
	err := conn.Call(ctx, method, result, params...)
	if err == nil {
		return nil
	}
	means, err := c.judge(ctx, conn, err)
	if means == expired {
		return endOf(ctx, method, began)
	}
	return err
}

// verdict is the consequence of an attempt's error.
type verdict uint8

const (
	final   verdict = iota // the call fails with it
	again                  // another attempt may succeed
	expired                // the context is done
)

// againError is an attempt's error that is worth another attempt.
type againError struct{ error }

// do makes attempts until one succeeds, or fails for good, or the time is up.
func (c *channel) do(parent context.Context, timeout time.Duration, what string, attempt func(context.Context, *wire.Client) error) error {
	began := time.Now()
	ctx, cancel := context.WithDeadline(parent, began.Add(timeout))
	defer cancel()
	var last error
	for {
		means, err := c.attempt(ctx, attempt)
		switch {
		case means == final || means == again && c.single:
			return err
		case means == again:
			last = err
		}
		switch {
		case ctx.Err() == nil:
		case last != nil && parent.Err() != context.Canceled:
			return last
		default:
			return endOf(ctx, what, began)
		}
	}
}

// endOf is the error of a call whose context is done.
func endOf(ctx context.Context, what string, began time.Time) error {
	if ctx.Err() == context.Canceled {
		return fmt.Errorf("kazahana: %s: %w", what, context.Canceled)
	}
	return outOfTime(what, time.Since(began))
}

func (c *channel) attempt(ctx context.Context, attempt func(context.Context, *wire.Client) error) (verdict, error) {
	conn, err := c.connection(ctx)
	if err != nil {
		return c.judgeConnect(err), err
	}
	if err = attempt(ctx, conn); err == nil {
		c.answered()
		return final, nil
	}
	return c.judge(ctx, conn, err)
}

// judge returns the verdict on an attempt's error, and the error for the caller.
func (c *channel) judge(ctx context.Context, conn *wire.Client, err error) (verdict, error) {
	var refusal *wire.Error
	var garbage *wire.ParseError
	var wish againError
	var ours *Error
	switch {
	case errors.As(err, &ours):
		return final, err
	case errors.As(err, &wish):
		c.retire(conn)
		return again, wish.error
	case errors.As(err, &refusal) && refusal.Code == wire.CodeShuttingDown:
		c.retire(conn)
		return again, fromWire(refusal)
	case errors.As(err, &refusal):
		c.answered()
		return final, fromWire(refusal)
	case errors.Is(err, wire.ErrUnreadableResult):
		return final, &Error{Code: ErrProtocol, Message: err.Error()}
	case errors.As(err, &garbage):
		return final, &Error{Code: ErrProtocol, Message: "the peer is not a kazahana daemon: " + garbage.Error()}
	case errors.Is(err, wire.ErrClosed) && c.ctx.Err() != nil:
		return final, ErrClosed
	case errors.Is(err, wire.ErrConnectionLost):
		return again, &DaemonUnavailableError{Err: err}
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return expired, err
	}
	return final, fmt.Errorf("kazahana: %w", err)
}

// judgeConnect returns the verdict on a failed connection.
func (c *channel) judgeConnect(err error) verdict {
	switch {
	case !errors.Is(err, ErrDaemonUnavailable) && !errors.Is(err, ErrClosed):
		return expired
	case !errors.Is(err, ErrDaemonUnavailable) || errors.Is(err, errHopeless):
		return final
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connected || c.failingSince.IsZero() || time.Since(c.failingSince) < firstConnect {
		return again
	}
	c.failures, c.failingSince = 0, time.Time{} // the next call has its own patience
	return final
}

// connection returns the present connection, or waits for the next one.
func (c *channel) connection(ctx context.Context) (*wire.Client, error) {
	c.mu.Lock()
	if c.ctx.Err() != nil {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	if c.conn != nil {
		if c.conn.Err() == nil {
			defer c.mu.Unlock()
			return c.conn, nil
		}
		c.drop(c.conn)
	}
	o := c.opening
	if o == nil {
		o = &opening{done: make(chan struct{})}
		c.opening = o
		pause := c.pause()
		c.work.Go(func() { c.open(o, pause) })
	}
	c.mu.Unlock()
	select {
	case <-o.done:
		return o.conn, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pause is how long to wait before the next connection. mu is held.
func (c *channel) pause() time.Duration {
	if c.failures <= 1 {
		return 0
	}
	longest := min(minPause<<min(c.failures-2, 16), maxPause)
	return longest/2 + rand.N(longest/2)
}

// open connects, after the pause.
func (c *channel) open(o *opening, pause time.Duration) {
	defer close(o.done)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ctx.Done():
	}
	nc, err := c.dial(c.ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opening = nil
	switch {
	case c.ctx.Err() != nil:
		if err == nil {
			_ = nc.Close()
		}
		o.err = ErrClosed
	case err != nil:
		if c.failures++; c.failingSince.IsZero() {
			c.failingSince = time.Now()
		}
		o.err = err
	default:
		c.connected, c.failingSince = true, time.Time{}
		c.conn = wire.NewToldClient(nc, c.told)
		o.conn = c.conn
	}
}

// answered notes that the daemon has answered.
func (c *channel) answered() {
	c.mu.Lock()
	c.failures = 0
	c.mu.Unlock()
}

// retire stops using a connection for new requests. It stays open for the answers that
// are still due.
func (c *channel) retire(conn *wire.Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == conn {
		c.drop(conn)
	}
}

// drop makes room for the next connection. mu is held.
func (c *channel) drop(conn *wire.Client) {
	c.conn = nil
	c.failures++
	for old := range c.former {
		if old.Err() != nil {
			delete(c.former, old)
		}
	}
	if conn.Err() == nil {
		c.former[conn] = struct{}{}
	}
}
