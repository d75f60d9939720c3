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
	began, deadline time.Time
	stale           bool // the present attempt's connection may be: it has served another call
	failed          int
	last            error // of the last attempt that has failed
}

func newAttempts(ctx context.Context, timeout time.Duration, what string) attempts {
	a := attempts{what: what, ctx: ctx, began: time.Now()}
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

// call performs a call with all its attempts. Every method can be repeated without harm: by its
// nature, or since the daemon knows the request ID.
func call[T any](ctx context.Context, c *Client, timeout time.Duration, r request, read reading[T]) (result T, err error) {
	a := newAttempts(ctx, timeout, r.method)
	err = c.attempt(&a, func() error {
		one, err := c.take(&a)
		if err != nil {
			return err
		}
		defer c.put(one)
		a.stale = one.msgid > 0
		result, err = exchange(ctx, one, a.deadline, r, read)
		return err
	})
	return result, err
}

// attempt tries until it succeeds, or fails for good, or the time is up.
func (c *Client) attempt(a *attempts, try func() error) error {
	for {
		err := errExpired
		if a.ctx.Err() == nil && time.Now().Before(a.deadline) {
			err = try()
		}
		switch {
		case err == nil:
			return nil
		case err == errExpired:
			return a.over()
		case c.single && !a.stale, !c.isTransient(err, a.began):
			return err
		}
		c.closeIdle() // they lead to the same daemon: the next attempt is to make another one
		a.wait(min(pause(a.failed), time.Until(a.deadline)), nil)
		a.failed, a.last, a.stale = a.failed+1, err, false
	}
}

// isTransient reports whether the same call may succeed in a moment.
func (c *Client) isTransient(err error, began time.Time) bool {
	var wish again
	var away *DaemonUnavailableError
	switch {
	case errors.Is(err, ErrShuttingDown), errors.As(err, &wish):
		return true
	case !errors.As(err, &away) || away.hopeless:
		return false
	}
	return c.reached.Load() || time.Since(began) < firstConnect
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

// take returns the idle connection that was used last, or another one.
func (c *Client) take(a *attempts) (one *conn, err error) {
	c.mu.Lock()
	closed, last := c.closed, len(c.idle)-1
	if last >= 0 {
		one, c.idle = c.idle[last], c.idle[:last]
	}
	c.mu.Unlock()
	switch {
	case closed:
		return nil, ErrClosed
	case one != nil:
		return one, nil
	}
	ctx, cancel := context.WithDeadline(a.ctx, a.deadline)
	defer cancel()
	nc, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	return newConn(nc), nil
}

func (c *Client) connect(ctx context.Context) (net.Conn, error) {
	nc, err := c.dial(ctx)
	if err == nil {
		c.reached.Store(true)
	}
	return nc, err
}

// put keeps a connection for another call, or closes it.
func (c *Client) put(one *conn) {
	c.mu.Lock()
	keep := one.clean && !c.closed && len(c.idle) < maxIdle
	if keep {
		c.idle = append(c.idle, one)
	}
	c.mu.Unlock()
	if !keep {
		_ = one.nc.Close()
	}
}

func (c *Client) closeIdle() {
	c.mu.Lock()
	idle := c.idle
	c.idle = nil
	c.mu.Unlock()
	for _, one := range idle {
		_ = one.nc.Close()
	}
}

// Open connects to the daemon for the caller alone: the connection does not end with the Client.
// begin makes the first calls on it, and decides: the connection is good when it returns nil.
// When it fails because the connection is lost, Open repeats it with another one, for as long
// as ctx and the timeout allow. The context of begin has their deadline.
func (c *Client) Open(ctx context.Context, timeout time.Duration, begin func(context.Context, net.Conn) error) error {
	a := newAttempts(ctx, timeout, "Open")
	within, cancel := context.WithDeadline(ctx, a.deadline)
	defer cancel()
	return c.attempt(&a, func() error {
		nc, err := c.connect(within)
		if err != nil {
			return err
		}
		if err = begin(within, nc); err != nil {
			_ = nc.Close()
		}
		return err
	})
}
