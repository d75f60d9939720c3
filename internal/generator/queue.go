package generator

import (
	"context"
	"time"
)

// Pending is a request that must wait, and what it has got so far. All fields
// that change are guarded by the generator's lock.
type Pending struct {
	gen    *Generator
	req    Request
	start  time.Time
	cause  Wait // what it waited for when it joined the queue
	need   int64
	ranges []Range
	err    error // why it failed
	ended  bool
	done   chan struct{} // closed when ended

	notify func()      // to be called then; nil if nobody asked for it
	timer  *time.Timer // the timeout, where notify is set
}

// For is what the request had to wait for when it began to wait.
func (p *Pending) For() Wait { return p.cause }

// Wait returns what Next would, counting the timeout from the Start. It must
// be called once and only once: until then the request keeps its place, and
// may be served.
func (p *Pending) Wait(ctx context.Context) ([]Range, error) { return p.gen.await(ctx, p) }

func (g *Generator) await(ctx context.Context, p *Pending) ([]Range, error) {
	timeout := time.NewTimer(p.req.Timeout - time.Since(p.start))
	defer timeout.Stop()
	var err error
	select {
	case <-p.done:
		return p.ranges, p.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timeout.C:
		err = &TimeoutError{Waited: time.Since(p.start)}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.ended {
		return p.ranges, p.err // served at the last moment
	}
	if t, ok := err.(*TimeoutError); ok {
		t.For = g.stop.Wait
	}
	g.remove(p)
	return nil, err
}

func (g *Generator) remove(p *Pending) {
	for i, other := range g.queue {
		if other == p {
			g.queue = append(g.queue[:i], g.queue[i+1:]...)
			return
		}
	}
}

// serve gives the waiters what there is, and sets the timer for the rest. It
// is called with the lock held: when a caller joins, when the timer fires, and
// when the leases change. Those who wait need no goroutine that runs.
func (g *Generator) serve() {
	if g.stopped || len(g.queue) == 0 {
		return
	}
	now := g.readAnew()
	g.catchUp(now.ms())
	if stop, served := g.share(now.ms(), false); !served {
		g.wakeAt(stop.UntilMS, now)
	}
}

// catchUp gives out the milliseconds that passed unused since the last ID,
// while everyone here was waiting for them. Only regular IDs are made up for:
// what was missing then, a lease or the right time, may be here now.
func (g *Generator) catchUp(nowMS int64) {
	for at := max(nowMS-catchUpMS, g.core.ms+1, g.joined.ms()); at < nowMS && len(g.queue) > 0; at++ {
		if stop, served := g.share(at, true); served || stop.Wait != WaitSequence {
			return
		}
	}
}

// share deals out one millisecond in rounds: in each, everyone who waits gets
// an equal part of what is left, so that a large batch leaves room for single
// IDs, and whoever stands first next time is the one who came away short. It
// reports whether everyone is served, or else why not. A late millisecond
// yields regular IDs or nothing, no errors.
func (g *Generator) share(atMS int64, late bool) (stop Stop, served bool) {
	for len(g.queue) > 0 {
		part := max((g.core.cfg.MaxThroughput-g.usedAt(atMS))/int64(len(g.queue)), 1)
		for range len(g.queue) {
			w := g.queue[0]
			r, stop := g.take(atMS, min(w.need, part), !w.req.RegularOnly && !late)
			if r.Count == 0 && (late || stop.Err == nil) {
				if stop.Err = g.overdue(w, stop); late || stop.Err == nil {
					g.stop = stop
					return stop, false
				}
			}
			g.queue = g.queue[1:]
			if r.Count > 0 {
				w.ranges = append(w.ranges, r)
				w.need -= r.Count
			}
			if stop.Err != nil || w.need == 0 {
				w.end(stop.Err)
			} else {
				g.queue = append(g.queue, w)
			}
		}
	}
	g.queue = nil // let the backing array go
	return Stop{}, true
}

func (g *Generator) usedAt(ms int64) int64 {
	if g.core.ms < ms {
		return 0
	}
	return g.core.used
}

// overdue is the error of a waiter whom the clock has kept longer than
// max_backward: a clock that stands still shows no growing distance.
func (g *Generator) overdue(w *Pending, stop Stop) error {
	limit := g.core.cfg.MaxBackwardMS
	if stop.Wait != WaitClock {
		g.clockSince = time.Time{}
		return nil
	}
	if g.clockSince.IsZero() {
		g.clockSince = time.Now()
	}
	since := g.clockSince
	if w.start.After(since) {
		since = w.start
	}
	waited := time.Since(since).Milliseconds()
	if limit < 0 || waited <= limit {
		return nil
	}
	return &ClockBackwardError{BackwardMS: waited, LimitMS: limit, Earlier: g.core.ms < g.core.floor}
}

// end tells who waits that it has what it gets.
func (p *Pending) end(err error) {
	if err != nil {
		p.ranges = nil
	}
	p.err, p.ended = err, true
	close(p.done)
	if p.notify != nil {
		p.timer.Stop()
		p.notify()
	}
}

// wakeAt arranges for serve to run when the clock shows untilMS, or a little
// later. 0 means that only a change of the leases helps.
func (g *Generator) wakeAt(untilMS int64, now Reading) {
	if untilMS == 0 {
		return
	}
	nap := min(max(time.Duration(untilMS*int64(time.Millisecond)-int64(now)), 0), maxNap)
	if g.wake == nil {
		g.wake = time.AfterFunc(nap, g.woken)
		return
	}
	g.wake.Reset(nap)
}

func (g *Generator) woken() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.serve()
}
