package generator

import (
	"time"
)

// An event loop cannot Wait. It asks to be told instead.

// Notify has f called, once, when the request has ended: served, failed, out of
// time, or cancelled. It may be called at once, and by anybody, with the
// generator's lock held: f must do no more than pass the word on. Result tells
// the rest. Wait may still be called instead.
func (p *Pending) Notify(f func()) {
	g := p.gen
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.ended {
		f()
		return
	}
	p.notify = f
	p.timer = time.AfterFunc(p.req.Timeout-time.Since(p.start), func() {
		p.cancel(func() error { return &TimeoutError{Waited: time.Since(p.start), For: g.stop.Wait} })
	})
}

// Result is what Wait would return for a request that has ended.
func (p *Pending) Result() ([]Range, error) {
	p.gen.mu.Lock()
	defer p.gen.mu.Unlock()
	return p.ranges, p.err
}

// Cancel ends the request with the error, if it has not ended yet. IDs that it
// had taken are never given to anyone.
func (p *Pending) Cancel(err error) { p.cancel(func() error { return err }) }

func (p *Pending) cancel(why func() error) {
	p.gen.mu.Lock()
	defer p.gen.mu.Unlock()
	if !p.ended {
		p.gen.remove(p)
		p.end(why())
	}
}
