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
	// firstConnect is how long a call waits for a daemon that was never reached: long enough for
	// a starting daemon, and short enough to report a missing one soon.
	firstConnect = time.Second
	// The pause before a connection is tried again doubles from one to the other.
	minPause = 5 * time.Millisecond
	maxPause = 200 * time.Millisecond
)

// errExpired is the error of an attempt that is out of time.
var errExpired = errors.New("the time is up")

// again is the error of an attempt that is to be repeated over another connection.
type again struct{ error }

func (e again) Unwrap() error { return e.error }

// dialer connects to the daemon. Its errors are *DaemonUnavailableErrors.
type dialer func(context.Context) (net.Conn, error)

// channel keeps one connection, and makes another whenever it is lost.
type channel struct {
	dial   dialer
	single bool // no call makes a second attempt
	told   func(*Conn, *Message)
	ctx    context.Context // ends with the channel
	end    context.CancelFunc
	work   sync.WaitGroup // goroutines
	idle   sync.Pool      // waiters to be used again

	mu        sync.Mutex
	link      *link         // the present one, or nil
	kept      *Conn         // survives the channel
	connected bool          // ever
	next      time.Time     // no connection is tried before
	pause     time.Duration // after the next failure
}

// link is a connection, or the attempt to make it, shared by all calls.
type link struct {
	done chan struct{} // closed when the others are set
	conn *Conn
	err  error
}

func newChannel(dial dialer, single bool, told func(*Conn, *Message)) *channel {
	ctx, end := context.WithCancel(context.Background())
	return &channel{dial: dial, single: single, told: told, ctx: ctx, end: end}
}

// close fails the calls under way with ErrClosed, and returns when the goroutines have
// ended, except those of the connection to keep.
func (c *channel) close(keep *Conn) {
	c.mu.Lock()
	c.kept = keep
	c.end() // under the lock: nothing is spawned after it
	c.mu.Unlock()
	c.work.Wait()
}

// spawn begins a goroutine, unless the channel is closed. mu is held.
func (c *channel) spawn(run func()) error {
	if c.ctx.Err() != nil {
		return ErrClosed
	}
	c.work.Add(1)
	go func() {
		defer c.work.Done()
		run()
	}()
	return nil
}

// waiter returns a waiter. A caller that has got its answer may return it.
func (c *channel) waiter(ctx context.Context, timeout time.Duration) *waiter {
	w, _ := c.idle.Get().(*waiter)
	if w == nil {
		return newWaiter(ctx, timeout)
	}
	w.begin(ctx, timeout)
	return w
}

// call repeats the request until there is an answer, or the time is up. It is used only
// for methods that can be repeated without harm.
func (c *channel) call(ctx context.Context, timeout time.Duration, r request) (any, error) {
	w := c.waiter(ctx, timeout)
	err := c.do(w, r.method, func(conn *Conn) error { return conn.call(w, r) })
	stopped := w.timer.Stop()
	if err != nil {
		return nil, err
	}
	value := w.value
	if stopped { // neither the timer nor a connection has the waiter any more
		w.ctx, w.value = nil, nil
		c.idle.Put(w)
	}
	return value, nil
}

// do makes attempts until one succeeds, or fails for good, or the time is up.
func (c *channel) do(w *waiter, what string, attempt func(*Conn) error) error {
	for last := error(nil); ; {
		conn, err := c.connection(w)
		if err == nil {
			err = attempt(conn)
		}
		switch {
		case err == errExpired:
			return w.end(what, last)
		case !c.repeats(w, conn, err):
			return err
		}
		last = err
	}
}

// repeats reports whether the outcome of an attempt calls for another one.
func (c *channel) repeats(w *waiter, conn *Conn, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.pause = 0
		return false
	}
	var wish again
	var away *DaemonUnavailableError
	switch {
	case errors.Is(err, ErrShuttingDown), errors.As(err, &wish):
		c.drop(conn)
	case !errors.As(err, &away):
		c.pause = 0
		return false
	case away.hopeless, !c.connected && time.Since(w.began) >= firstConnect:
		return false
	}
	return !c.single
}

// connection returns the present connection, or waits for the next one.
func (c *channel) connection(w *waiter) (*Conn, error) {
	if w.isOver() {
		return nil, errExpired
	}
	l, err := c.present()
	if err != nil {
		return nil, err
	}
	if !w.wait(l.done) {
		return nil, errExpired
	}
	return l.conn, l.err
}

// present returns the present link, or begins the next one.
func (c *channel) present() (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.link; l != nil && l.conn != nil && l.conn.Err() != nil {
		c.drop(l.conn)
	}
	if c.link == nil {
		l, pause := &link{done: make(chan struct{})}, time.Until(c.next)
		if err := c.spawn(func() { c.open(l, pause) }); err != nil {
			return nil, err
		}
		c.link = l
	}
	return c.link, nil
}

// open connects after the pause, and closes the connection with the channel.
func (c *channel) open(l *link, pause time.Duration) {
	newWaiter(c.ctx, pause).wait(nil)
	nc, err := c.dial(c.ctx)
	c.mu.Lock()
	switch {
	case err == nil:
		l.conn = NewConn(nc, c.told)
		c.connected = true
	case c.ctx.Err() != nil:
		l.err = ErrClosed
	default:
		l.err = err
		c.drop(nil)
	}
	c.mu.Unlock()
	close(l.done)
	if l.conn == nil {
		return
	}
	select {
	case <-l.conn.Done():
	case <-c.ctx.Done():
		if l.conn == c.kept {
			return
		}
	}
	_ = l.conn.Close()
}

// drop makes room for the next connection: after a pause, unless this is the first failure
// since the last answer. The dropped one stays open for the answers that are due, since
// stopping daemons answer what they have begun. mu is held.
func (c *channel) drop(conn *Conn) {
	if c.link == nil || c.link.conn != conn {
		return
	}
	c.link = nil
	c.next = time.Now().Add(c.pause/2 + rand.N(c.pause/2+1))
	c.pause = min(max(2*c.pause, minPause), maxPause)
}
