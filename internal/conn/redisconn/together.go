package redisconn

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxFlights is how many exchanges of Process are under way at a time.
	maxFlights = 4
	// warmFor is how long a connection that has answered counts as alive.
	warmFor = 10 * time.Millisecond
	// maxTogether is how many commands one of them carries.
	maxTogether = 64
)

// flights are the exchanges of Process.
type flights struct {
	mu      sync.Mutex
	flying  int
	waiting []*passenger // first come first
	warm    []warmConn   // of exchanges that have just ended
	cooling bool         // cool will come
}

// warmConn is a connection that the next exchange uses as it is. The client library's pool asks
// the system about each connection that it gives out: one system call in four, where exchanges
// follow each other.
type warmConn struct {
	*redis.Conn
	since time.Time
}

// passenger is a command that waits for an exchange.
type passenger struct {
	ctx  context.Context
	cmd  redis.Cmder
	done chan struct{}
}

// Process carries a command out, on any connection. Where enough exchanges are under way, it
// waits for the end of one, and goes together with others that wait: many callers then cost
// the server and this process fewer system calls. Its error is the command's, or the context's,
// after which the command is not the caller's any more. It is for operations: their context has a
// deadline.
func (c *Client) Process(ctx context.Context, cmd redis.Cmder) error {
	f := &c.flights
	f.mu.Lock()
	if f.flying < maxFlights {
		f.flying++
		conn := f.takeWarm()
		f.mu.Unlock()
		defer c.land()
		if conn == nil {
			conn = c.redis.Conn()
		}
		err := conn.Process(ctx, cmd)
		c.keepWarm(conn, err)
		return err
	}
	p := &passenger{ctx, cmd, make(chan struct{})}
	f.waiting = append(f.waiting, p)
	f.mu.Unlock()
	select {
	case <-p.done:
		return cmd.Err()
	case <-ctx.Done():
		f.leave(p)
		return ctx.Err()
	}
}

// leave is for a caller that waits no longer. Its command is not sent, unless it is on its way.
func (f *flights) leave(p *passenger) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting = slices.DeleteFunc(f.waiting, func(other *passenger) bool { return other == p })
}

// takeWarm returns nil where no connection is warm. mu is held.
func (f *flights) takeWarm() *redis.Conn {
	n := len(f.warm) - 1
	if n < 0 || time.Since(f.warm[n].since) >= warmFor {
		return nil
	}
	conn := f.warm[n].Conn
	f.warm = f.warm[:n]
	return conn
}

// keepWarm takes a connection after an exchange that ended with that error. After any error
// the pool decides what becomes of it: it may be broken, or lead to a server that is no longer
// the primary.
func (c *Client) keepWarm(conn *redis.Conn, err error) {
	f := &c.flights
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		_ = conn.Close()
		for _, w := range f.warm { // they may have broken with it
			_ = w.Close()
		}
		f.warm = nil
		return
	}
	f.warm = append(f.warm, warmConn{conn, time.Now()})
	if !f.cooling {
		f.cooling = true
		time.AfterFunc(warmFor, c.cool)
	}
}

// cool gives connections that have not been used for a moment back to the pool.
func (c *Client) cool() {
	f := &c.flights
	f.mu.Lock()
	n := slices.IndexFunc(f.warm, func(w warmConn) bool { return time.Since(w.since) < warmFor }) // the last are the latest
	if n < 0 {
		n = len(f.warm)
	}
	cold := slices.Clone(f.warm[:n])
	f.warm = slices.Delete(f.warm, 0, n)
	if f.cooling = len(f.warm) > 0; f.cooling {
		time.AfterFunc(warmFor, c.cool)
	}
	f.mu.Unlock()
	for _, w := range cold {
		_ = w.Close()
	}
}

// land ends an exchange, and begins the next one.
func (c *Client) land() {
	f := &c.flights
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waiting) == 0 {
		f.flying--
		return
	}
	n := min(len(f.waiting), maxTogether)
	all := f.waiting[:n:n]
	f.waiting = f.waiting[n:]
	c.exchanges.Go(func() { c.fly(all) })
}

// fly is an exchange of several commands.
func (c *Client) fly(all []*passenger) {
	defer c.land()
	var longest context.Context
	pipe := c.redis.Pipeline()
	for _, p := range all {
		if err := p.ctx.Err(); err != nil {
			p.cmd.SetErr(err)
			continue
		}
		if longest == nil || later(p.ctx, longest) {
			longest = p.ctx
		}
		_ = pipe.Process(p.ctx, p.cmd)
	}
	if longest != nil {
		deadline, _ := longest.Deadline()
		_, _ = pipe.Exec(until{context.WithoutCancel(longest), deadline})
	}
	for _, p := range all {
		close(p.done)
	}
}

func later(a, b context.Context) bool {
	x, _ := a.Deadline()
	y, _ := b.Deadline()
	return x.After(y)
}
