package kazahana

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"
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
	single bool // no call makes a second attempt
	told   func(*Conn, *Message)
	ctx    context.Context // ends with the channel
	end    context.CancelFunc
	work   sync.WaitGroup // openings

	mu           sync.Mutex
	conn         *Conn
	former       map[*Conn]struct{} // stopping daemons still answer what they began
	opening      *opening
	failures     int // in a row, since the last answer
	failingSince time.Time
	connected    bool // ever
}

// opening is an attempt to connect, shared by all calls that need a connection.
type opening struct {
	done chan struct{} // closed when the others are set
	conn *Conn
	err  error
}

func newChannel(dial dialer, single bool, told func(*Conn, *Message)) *channel {
	ctx, end := context.WithCancel(context.Background())
	return &channel{dial: dial, single: single, told: told, ctx: ctx, end: end, former: map[*Conn]struct{}{}}
}

// close fails the calls under way with ErrClosed, and returns when the goroutines have
// ended, except those of the connection to keep.
func (c *channel) close(keep *Conn) {
	c.mu.Lock()
	c.end() // under the lock: no opening begins after it
	c.mu.Unlock()
	c.work.Wait()
	c.mu.Lock()
	all := c.former
	if c.conn != nil {
		all[c.conn] = struct{}{}
	}
	c.conn, c.former = nil, map[*Conn]struct{}{}
	c.mu.Unlock()
	for conn := range all {
		if conn != keep {
			_ = conn.Close()
		}
	}
}

// again is an attempt's error that is worth another attempt.
type again struct{ error }

// call repeats the request until there is an answer, or the time is up. It is used only
// for methods that can be repeated without harm.
func (c *channel) call(ctx context.Context, timeout time.Duration, r *request, result any) error {
	return c.do(ctx, timeout, r.method, func(l limit, conn *Conn) error { return conn.call(l, r, result) })
}

// do makes attempts until one succeeds, or fails for good, or the time is up.
func (c *channel) do(ctx context.Context, timeout time.Duration, what string, attempt func(limit, *Conn) error) error {
	l := newLimit(ctx, timeout)
	var last error
	for {
		conn, err := c.connection(l)
		if err == nil {
			err = attempt(l, conn)
		}
		switch {
		case err == nil:
			c.answered()
			return nil
		case err == errExpired && (last == nil || ctx.Err() == context.Canceled):
			return l.end(what)
		case err == errExpired:
			return last
		}
		repeat := c.judge(conn, err)
		if wish, ok := err.(again); ok {
			err = wish.error
		}
		if !repeat || c.single {
			return err
		}
		last = err
	}
}

// judge reports whether another attempt may succeed.
func (c *channel) judge(conn *Conn, err error) bool {
	var wish again
	switch {
	case errors.Is(err, ErrShuttingDown), errors.As(err, &wish):
		c.retire(conn)
		return true
	case !errors.Is(err, ErrDaemonUnavailable):
		c.answered()
		return false
	case conn != nil:
		return true
	case errors.Is(err, errHopeless):
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connected || c.failingSince.IsZero() || time.Since(c.failingSince) < firstConnect {
		return true
	}
	c.failures, c.failingSince = 0, time.Time{} // the next call has its own patience
	return false
}

// connection returns the present connection, or waits for the next one.
func (c *channel) connection(l limit) (*Conn, error) {
	c.mu.Lock()
	switch {
	case c.ctx.Err() != nil:
		c.mu.Unlock()
		return nil, ErrClosed
	case l.over():
		c.mu.Unlock()
		return nil, errExpired
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
		c.work.Add(1)
		go c.open(o, pause)
	}
	c.mu.Unlock()
	if !l.wait(o.done) {
		return nil, errExpired
	}
	return o.conn, o.err
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
	defer c.work.Done()
	defer close(o.done)
	newLimit(c.ctx, pause).wait(nil) // or until the channel ends
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
		c.conn = NewConn(nc, c.told)
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
func (c *channel) retire(conn *Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == conn {
		c.drop(conn)
	}
}

// drop makes room for the next connection. mu is held.
func (c *channel) drop(conn *Conn) {
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
