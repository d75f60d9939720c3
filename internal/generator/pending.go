package generator

import (
	"context"
	"time"
)

// Pending is a request that must wait, and its IDs so far. All fields that change are guarded by
// the generator's lock.
type Pending struct {
	req             Request
	start, deadline time.Time
	cause           Wait // the cause of its wait when it joined the queue
	need            int64
	ranges          []Range
	err             error // why it failed
	ended           bool

	// For the Generator alone.
	gen    *Generator
	done   chan struct{} // closed when ended; nil while Wait is not called
	notify func()        // to be called then; nil while Notify is not called
}

// For is what the request had to wait for when it began to wait.
func (p *Pending) For() Wait { return p.cause }

// Wait returns what Next would, counting the timeout from the Start. It must
// be called once and only once: until then the request keeps its place, and
// may be served.
func (p *Pending) Wait(ctx context.Context) ([]Range, error) {
	g := p.gen
	g.mu.Lock()
	done := make(chan struct{})
	if p.done = done; p.ended {
		close(done)
	}
	g.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		p.Cancel(context.Cause(ctx))
	}
	return p.Result()
}

// Notify is Wait for a caller that cannot block, as an event loop. f is called,
// once, when the request has ended: served, failed, out of time, or cancelled. That
// may be at once, on any goroutine, with the generator's lock held: f must do no
// more than pass the word on. Result tells the rest. Wait may still be called
// instead.
func (p *Pending) Notify(f func()) {
	p.gen.mu.Lock()
	defer p.gen.mu.Unlock()
	if p.ended {
		f()
		return
	}
	p.notify = f
}

// Result is what Wait would return for a request that has ended.
func (p *Pending) Result() ([]Range, error) {
	p.gen.mu.Lock()
	defer p.gen.mu.Unlock()
	return p.ranges, p.err
}

// Cancel ends the request with the error, if it has not ended yet. IDs that it
// had taken are never given to anyone.
func (p *Pending) Cancel(err error) {
	p.gen.mu.Lock()
	defer p.gen.mu.Unlock()
	p.gen.q.Leave(p, err)
	p.gen.settle()
}

// tell passes on that the request has ended.
func (p *Pending) tell() {
	if p.done != nil {
		close(p.done)
	}
	if p.notify != nil {
		p.notify()
	}
}
