package generator

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Clock is the believed time. It is read under the generator's lock and
// without, by several goroutines at once.
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
	newest Reading // the last one that was used, but for those within the run
	// [runFrom, runUntil) are the readings that get IDs of the core's run: the
	// millisecond in use. runUntil is 0 where none does, as while somebody
	// waits, and after Stop. The run's own end closes it too.
	runFrom, runUntil Reading
	queue             []*Pending // in the order in which they are served next
	joined            Reading    // when the last one joined; no earlier millisecond is made up for
	stop              Stop       // why the queue waits
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

// Reading is a reading of the believed clock, in Unix nanoseconds. One reading
// serves for a burst of requests that have arrived already; it is not to be
// kept for longer. The zero value has the clock read for the request.
type Reading int64

func (r Reading) ms() int64 { return int64(r) / int64(time.Millisecond) }

// Read reads the clock for a burst of requests.
func (g *Generator) Read() Reading { return Reading(g.clock.NowNS()) }

// Next appends ranges that hold req.Count IDs in ascending order to dst. It is
// Start with a reading of its own, and then Wait.
//
// It fails with *ClockBackwardError, *LeaseAcquisitionError, ErrNoProvider,
// ErrOverflow, *TimeoutError, ErrStopped, or ctx's error. IDs that a failed
// batch had already taken are never given to anyone.
func (g *Generator) Next(ctx context.Context, req Request, dst []Range) ([]Range, error) {
	ranges, pending, err := g.Start(0, req, dst)
	if pending != nil {
		return pending.Wait(ctx)
	}
	return ranges, err
}

// Start does what Next does as far as it can be done without waiting, by the
// clock's reading at. Where Next would wait, it returns a Pending that stands
// in the queue already, holds what was taken so far, and owns dst.
//
// A reading that is older than one which was used, or than the last change of
// the leases, is not used, and none decides that a request fails or waits:
// the clock is read afresh. So a burst never looks like a clock that went back.
func (g *Generator) Start(at Reading, req Request, dst []Range) ([]Range, *Pending, error) {
	if at == 0 {
		at = g.Read()
	}
	g.mu.Lock()
	// Most requests go on where the last one ended.
	if c := g.core; g.runFrom <= at && at < g.runUntil && 0 < req.Count && req.Count <= c.left() {
		r := c.cut(c.ms, c.low+1, req.Count)
		g.mu.Unlock()
		return append(dst, r), nil, nil
	}
	return g.startLocked(at, req, dst)
}

// startLocked is Start where the run does not suffice. It unlocks.
func (g *Generator) startLocked(at Reading, req Request, dst []Range) ([]Range, *Pending, error) {
	defer g.mu.Unlock()
	if g.stopped {
		return dst, nil, ErrStopped
	}
	g.runUntil = 0
	fresh := false
	// A reading that was made before the newest one in use would look like a
	// clock that went back. While it is known to have gone back, none from
	// before that counts.
	if at < g.newest || g.core.behind {
		at, fresh = g.Read(), true
	}
	g.newest = at
	need, stop := req.Count, g.stop
	if len(g.queue) == 0 {
		dst, need, stop = g.takeAll(at, need, req.RegularOnly, dst)
		if need > 0 && !fresh {
			at = g.readAnew()
			dst, need, stop = g.takeAll(at, need, req.RegularOnly, dst)
		}
		if need <= 0 {
			g.letRun(at)
		}
		if need <= 0 || stop.Err != nil {
			return dst, nil, stop.Err
		}
	}
	if req.Timeout <= 0 {
		return dst, nil, &TimeoutError{For: stop.Wait}
	}
	p := &Pending{gen: g, req: req, start: time.Now(), need: need, ranges: dst, done: make(chan struct{})}
	g.queue, g.joined, g.stop = append(g.queue, p), max(g.joined, g.readAnew()), stop
	g.serve()
	if p.ended {
		return p.ranges, nil, p.err
	}
	p.cause = g.stop.Wait
	return nil, p, nil
}

// letRun lets readings of the millisecond in use take from the run without a
// further look, after at, one of them, has done so, and while nobody waits.
func (g *Generator) letRun(at Reading) {
	if ms := g.core.ms; at.ms() == ms && g.core.run.kind == Regular {
		g.runFrom, g.runUntil = Reading(ms*int64(time.Millisecond)), Reading((ms+1)*int64(time.Millisecond))
	}
}

// readAnew reads the clock, with the lock held, so that every reading from
// before counts as overtaken.
func (g *Generator) readAnew() Reading {
	g.newest = g.Read()
	return g.newest
}

// takeAll takes as much as the present millisecond gives.
func (g *Generator) takeAll(at Reading, want int64, regularOnly bool, dst []Range) (_ []Range, need int64, stop Stop) {
	for want > 0 {
		var r Range
		r, stop = g.take(at.ms(), want, !regularOnly)
		if r.Count == 0 {
			return dst, want, stop
		}
		dst, want = append(dst, r), want-r.Count
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

// Update replaces the leases, as Core.SetLeases does. When it returns, no ID
// is made from a lease that is not among them.
func (g *Generator) Update(held []lease.Lease, cached *lease.Lease, cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.core.SetLeases(held, cached, cause)
	g.readAnew() // a reading from before may be from before the new leases begin
	if cause != nil {
		g.core.EndStartup()
	}
	g.serve()
}

// SetConfig replaces the configuration, for those who wait as well.
func (g *Generator) SetConfig(cfg Config) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.core.SetConfig(cfg)
	g.serve()
}

// Rebase moves the stream to another timeline; see Core.Rebase.
func (g *Generator) Rebase(tl snowflake.Timeline) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.Rebase(tl, g.readAnew().ms())
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
	return g.core.Mode(g.Read().ms())
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
	g.stopped, g.runUntil = true, 0
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
