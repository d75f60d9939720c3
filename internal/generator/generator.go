package generator

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Clock is the believed time. It is read under the generator's lock.
type Clock interface {
	NowNS() int64 // Unix nanoseconds
}

// Mark is durable: it survives the process. RaiseMark is called under the
// generator's lock and must be no more than a store to memory.
type Mark interface {
	RaiseMark(unixMS int64) // every ID so far embeds less
}

const (
	// maxNap bounds how long waiters trust the clock to reach a moment: it may
	// be set in between.
	maxNap = 100 * time.Millisecond
	// catchUpMS bounds how far back milliseconds that passed unused are still
	// given to callers who were waiting for them. Timers fire late by up to a
	// millisecond or two; without this every late one would cost throughput.
	catchUpMS = 8
)

// Options of a Generator beside the Core's.
type Options struct {
	Config
	Timeline    snowflake.Timeline
	Floor       int64         // the mark that earlier lives left, Unix ms; 0 = none
	StartupWait time.Duration // how long the first lease is waited for; 0 = not at all
	Clock       Clock
	Mark        Mark
	Rand        *rand.Rand
}

// Generator is safe for concurrent use.
type Generator struct {
	clock  Clock
	mark   Mark
	growth chan struct{} // capacity 1; a token says that held leases were used up

	// mu guards everything below. Nothing sleeps, logs or does I/O under it.
	mu     sync.Mutex
	core   *Core
	queue  []*waiter // in the order in which they are served next
	joined int64     // Unix ns, believed clock: when the last one joined; no earlier millisecond is made up for
	stop   Stop      // why the queue waits
	// clockSince is when the queue began to wait for the clock; zero while it
	// does not.
	clockSince time.Time
	wake       *time.Timer
	startup    *time.Timer
	stopped    bool
}

// New returns a generator. Stop ends it.
func New(o Options) *Generator {
	g := &Generator{
		clock:  o.Clock,
		mark:   o.Mark,
		growth: make(chan struct{}, 1),
		core:   NewCore(o.Config, o.Timeline, o.Floor, o.Rand),
	}
	if o.StartupWait <= 0 {
		g.core.EndStartup()
	} else {
		g.startup = time.AfterFunc(o.StartupWait, g.endStartup)
	}
	return g
}

// Request asks for IDs.
type Request struct {
	Count       int64         // at least 1
	RegularOnly bool          // an error instead of a fallback ID
	Timeout     time.Duration // how long to wait at most; 0 or less = not at all
}

// waiter is a request that must wait, and what it has got so far. All fields
// but done are guarded by the generator's lock.
type waiter struct {
	req    Request
	start  time.Time
	need   int64
	ranges []Range
	err    error // why it failed
	ended  bool
	done   chan struct{} // closed when ended
}

// Next appends ranges that hold req.Count IDs in ascending order to dst.
//
// It fails with *ClockBackwardError, *LeaseAcquisitionError, ErrNoProvider,
// ErrOverflow, *TimeoutError, ErrStopped, or ctx's error. IDs that a failed
// batch had already taken are never given to anyone.
func (g *Generator) Next(ctx context.Context, req Request, dst []Range) ([]Range, error) {
	g.mu.Lock()
	if g.stopped {
		g.mu.Unlock()
		return dst, ErrStopped
	}
	// Read under the lock: a reading that waited for it would be behind the IDs
	// of others, and look like a clock that went back.
	now := g.clock.NowNS()
	need, stop := req.Count, g.stop
	if len(g.queue) == 0 {
		dst, need, stop = g.takeAll(now, req, dst)
		if need == 0 || stop.Err != nil {
			g.mu.Unlock()
			return dst, stop.Err
		}
	}
	if req.Timeout <= 0 {
		g.mu.Unlock()
		return dst, &TimeoutError{For: stop.Wait}
	}
	w := &waiter{req: req, start: time.Now(), need: need, ranges: dst, done: make(chan struct{})}
	g.queue, g.joined, g.stop = append(g.queue, w), max(g.joined, now), stop
	g.serve()
	g.mu.Unlock()
	return g.await(ctx, w)
}

// takeAll takes as much as the present millisecond gives.
func (g *Generator) takeAll(nowNS int64, req Request, dst []Range) (_ []Range, need int64, stop Stop) {
	need = req.Count
	for need > 0 {
		var r Range
		r, stop = g.take(nowNS/int64(time.Millisecond), need, !req.RegularOnly)
		if r.Count == 0 {
			return dst, need, stop
		}
		dst, need = append(dst, r), need-r.Count
	}
	return dst, 0, Stop{}
}

// take is Core.Take with the mark kept above every ID that leaves.
func (g *Generator) take(nowMS, want int64, allowFallback bool) (Range, Stop) {
	before := g.core.ms
	r, stop := g.core.Take(nowMS, want, allowFallback)
	if g.core.ms != before {
		g.mark.RaiseMark(g.core.ms + 1)
	}
	if g.core.growth {
		g.core.growth = false
		select {
		case g.growth <- struct{}{}:
		default: // the keeper knows already
		}
	}
	return r, stop
}

func (g *Generator) await(ctx context.Context, w *waiter) ([]Range, error) {
	timeout := time.NewTimer(w.req.Timeout)
	defer timeout.Stop()
	var err error
	select {
	case <-w.done:
		return w.ranges, w.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timeout.C:
		err = &TimeoutError{Waited: time.Since(w.start)}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.ended {
		return w.ranges, w.err // served at the last moment
	}
	if t, ok := err.(*TimeoutError); ok {
		t.For = g.stop.Wait
	}
	g.remove(w)
	return nil, err
}

func (g *Generator) remove(w *waiter) {
	for i, other := range g.queue {
		if other == w {
			g.queue = append(g.queue[:i], g.queue[i+1:]...)
			return
		}
	}
}

// Update replaces the leases, as Core.SetLeases does. When it returns, no ID
// is made from a lease that is not among them.
func (g *Generator) Update(held []lease.Lease, cached *lease.Lease, cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.core.SetLeases(held, cached, cause)
	if cause != nil {
		g.core.EndStartup()
	}
	g.serve()
}

// Rebase moves the stream to another timeline; see Core.Rebase.
func (g *Generator) Rebase(tl snowflake.Timeline) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.Rebase(tl, g.clock.NowNS()/int64(time.Millisecond))
}

// Growth has a token when callers used up all leases in a millisecond and
// MaxThroughput would allow more.
func (g *Generator) Growth() <-chan struct{} { return g.growth }

// LastMS is the largest Unix ms that any ID so far may embed, earlier lives
// included.
func (g *Generator) LastMS() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.LastMS()
}

// Mode returns what a request for one ID would get now; see Core.Mode.
func (g *Generator) Mode() (Mode, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return ModeUnavailable, ErrStopped
	}
	return g.core.Mode(g.clock.NowNS() / int64(time.Millisecond))
}

// Stats are the counts since the start.
func (g *Generator) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.stats
}

// Stop fails those who wait, and everyone who comes after, with ErrStopped.
func (g *Generator) Stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	if g.startup != nil {
		g.startup.Stop()
	}
	if g.wake != nil {
		g.wake.Stop()
	}
	for _, w := range g.queue {
		w.end(ErrStopped)
	}
	g.queue = nil
}

func (g *Generator) endStartup() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.core.EndStartup()
	g.serve()
}
