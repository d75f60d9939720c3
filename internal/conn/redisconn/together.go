package redisconn

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

const (
	// maxFlights is how many exchanges of Process are under way at a time.
	maxFlights = 4
	// maxTogether is how many commands one of them carries.
	maxTogether = 64
)

// flights are the exchanges of Process.
type flights struct {
	mu      sync.Mutex
	flying  int
	waiting []*passenger // first come first
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
		f.mu.Unlock()
		defer c.land()
		return c.redis.Process(ctx, cmd)
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
