package kazahana

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"
)

const (
	// maxIdle is how many connections are kept while no call uses them.
	maxIdle = 64
	// firstConnect is how long a call waits for a daemon that was never reached: long enough for
	// a starting daemon, and short enough to report a missing one soon.
	firstConnect = time.Second
	// The pause before another attempt doubles from one to the other.
	minPause = 5 * time.Millisecond
	maxPause = 200 * time.Millisecond
)

// dialer connects to the daemon. Its errors are *DaemonUnavailableErrors.
type dialer func(context.Context) (net.Conn, error)

// again is the error of an attempt that is to be repeated over another connection.
type again struct{ error }

func (e again) Unwrap() error { return e.error }

// attempts are the attempts of one call.
type attempts struct {
	what            string // the method
	ctx             context.Context
	life            context.Context // of the client, if the call ends with it
	began, deadline time.Time
	failed          int
	last            error // of the last attempt that has failed
}

func newAttempts(ctx, life context.Context, timeout time.Duration, what string) attempts {
	a := attempts{what: what, ctx: ctx, life: life, began: time.Now()}
	a.deadline = a.began.Add(timeout)
	if end, ok := ctx.Deadline(); ok && end.Before(a.deadline) {
		a.deadline = end
	}
	return a
}

// wait waits for done, for this long at most, and reports whether it came.
func (a *attempts) wait(pause time.Duration, done <-chan struct{}) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-a.ctx.Done():
	case <-timer.C:
	}
	return false
}

// check returns an error if there is no time for an attempt.
func (a *attempts) check() error {
	switch {
	case a.life.Err() != nil:
		return ErrClosed
	case a.ctx.Err() != nil, !time.Now().Before(a.deadline):
		return errExpired
	}
	return nil
}

// over is the error of a call that is out of time: the last attempt's, if there is one.
func (a *attempts) over() error {
	switch {
	case a.ctx.Err() == context.Canceled:
		return fmt.Errorf("kazahana: %s: %w", a.what, context.Canceled)
	case a.last != nil:
		return a.last
	}
	e := &Error{Code: ErrTimeout, Message: "no answer to " + a.what + " from the daemon"}
	return &RequestTimeoutError{Waited: time.Since(a.began), Err: e}
}

// call makes attempts until one succeeds, or fails for good, or the time is up. All methods can
// be repeated without harm: by their nature, or since the daemon knows their request ID.
func call[T any](ctx context.Context, c *Client, timeout time.Duration, r request, read reading[T]) (T, error) {
	for a := newAttempts(ctx, c.life, timeout, r.method); ; {
		result, err := attempt(c, &a, r, read)
		if err == nil {
			return result, nil
		}
		if err = c.again(&a, err); err != nil {
			return *new(T), err
		}
	}
}

// attempt makes a call on an idle connection, or on another one.
func attempt[T any](c *Client, a *attempts, r request, read reading[T]) (result T, err error) {
	if err = a.check(); err != nil {
		return result, err
	}
	one := c.take()
	if one == nil {
		nc, err := c.connect(a)
		if err != nil {
			return result, err
		}
		one = newConn(nc)
		one.unlink = context.AfterFunc(c.life, func() { _ = nc.Close() })
	}
	defer c.put(one)
	return exchange(a.ctx, one, a.deadline, r, read)
}

func (c *Client) connect(a *attempts) (net.Conn, error) {
	ctx, cancel := context.WithDeadline(a.ctx, a.deadline)
	defer cancel()
	stop := context.AfterFunc(a.life, cancel)
	defer stop()
	nc, err := c.dial(ctx)
	if err == nil {
		c.reached.Store(true)
	}
	return nc, err
}

// take returns the idle connection that was used last, or nil.
func (c *Client) take() *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := len(c.idle) - 1
	if last < 0 {
		return nil
	}
	one := c.idle[last]
	c.idle = c.idle[:last]
	return one
}

// put keeps a connection for another call, or closes it.
func (c *Client) put(one *conn) {
	c.mu.Lock()
	keep := one.clean && len(c.idle) < maxIdle
	if keep {
		c.idle = append(c.idle, one)
	}
	c.mu.Unlock()
	if !keep {
		one.close()
	}
}

// again waits for the time of another attempt. Without one, it returns the call's error.
func (c *Client) again(a *attempts, err error) error {
	switch {
	case err == errExpired:
		return a.over()
	case a.life.Err() != nil:
		return ErrClosed
	case c.single || !c.isTransient(a, err):
		return err
	}
	// The idle connections lead to the same daemon: the next attempt makes another one.
	c.mu.Lock()
	stale := c.idle
	c.idle = nil
	c.mu.Unlock()
	for _, one := range stale {
		one.close()
	}
	a.wait(min(pause(a.failed), time.Until(a.deadline)), a.life.Done())
	a.last = err
	a.failed++
	return nil
}

// isTransient reports whether the same call may succeed in a moment.
func (c *Client) isTransient(a *attempts, err error) bool {
	var wish again
	var away *DaemonUnavailableError
	switch {
	case errors.Is(err, ErrShuttingDown), errors.As(err, &wish):
		return true
	case !errors.As(err, &away) || away.hopeless:
		return false
	}
	return c.reached.Load() || time.Since(a.began) < firstConnect
}

// pause is how long to wait after so many failures. The first wait is none: a new daemon may
// listen already.
func pause(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	longest := min(minPause<<min(failures-1, 10), maxPause)
	return longest/2 + rand.N(longest/2+1)
}

// Open connects to the daemon for the caller alone: the connection does not end with the Client.
// begin makes the first calls on it, and decides: the connection is good when it returns nil.
// When it fails because the connection is lost, Open repeats it with another one, for as long
// as ctx and the timeout allow. The context of begin has their deadline.
func (c *Client) Open(ctx context.Context, timeout time.Duration, begin func(context.Context, net.Conn) error) error {
	a := newAttempts(ctx, context.Background(), timeout, "Open")
	within, cancel := context.WithDeadline(ctx, a.deadline)
	defer cancel()
	for {
		err := a.check()
		if err == nil {
			err = c.begin(within, &a, begin)
		}
		if err == nil {
			return nil
		}
		if err = c.again(&a, err); err != nil {
			return err
		}
	}
}

func (c *Client) begin(ctx context.Context, a *attempts, begin func(context.Context, net.Conn) error) error {
	nc, err := c.connect(a)
	if err != nil {
		return err
	}
	if err = begin(ctx, nc); err != nil {
		_ = nc.Close()
	}
	return err
}
