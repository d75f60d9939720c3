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

// Generator is a Queue behind a lock, with a clock, a mark and a timer. It is safe
// for concurrent use.
type Generator struct {
	clock  Clock
	mark   Mark
	growth chan struct{} // capacity 1; a token says that held leases were used up

	// mu guards everything below. Nothing sleeps, logs or does I/O under it.
	mu      sync.Mutex
	core    *Core // the queue's
	q       Queue
	marked  int64 // the mark, as far as this life has raised it
	wake    *time.Timer
	startup *time.Timer
}

// New returns a generator. Stop ends it.
func New(o Options) *Generator {
	core := NewCore(o.Config, o.Timeline, o.Floor, o.Rand)
	g := &Generator{
		clock: o.Clock, mark: o.Mark, growth: make(chan struct{}, 1),
		core: core, q: Queue{core: core, nap: -1}, marked: core.ms + 1,
	}
	if o.StartupWait <= 0 {
		core.EndStartup()
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
// clock's reading at. Where Next would wait, it returns a Pending that stands in the
// queue already, holds the IDs taken so far, and owns dst.
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
	if c := g.core; g.q.hasRun(at, req.Count) {
		r := c.cut(c.ms, c.low+1, req.Count)
		g.mu.Unlock()
		return append(dst, r), nil, nil
	}
	return g.startLocked(at, req, dst)
}

// Run takes up to n IDs of what the last request has left of the millisecond; none where there is
// no such rest at the reading, and Start is the way. So a burst of requests costs one visit.
func (g *Generator) Run(at Reading, n int64) (r Range) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.core; n > 0 && g.q.hasRun(at, 1) {
		r = c.cut(c.ms, c.low+1, n)
	}
	return r
}

// One is the next ID where the last request has left some of this millisecond; ok is
// false elsewhere, and Next is the way. It allocates nothing.
func (g *Generator) One() (id snowflake.ID, ok bool) {
	r := g.Run(g.Read(), 1)
	return r.Start, r.Count > 0
}

// startLocked is Start where the run does not suffice. It unlocks.
func (g *Generator) startLocked(at Reading, req Request, dst []Range) ([]Range, *Pending, error) {
	defer g.mu.Unlock()
	defer g.settle()
	q := &g.q
	if q.closed {
		return dst, nil, ErrStopped
	}
	need, stop := req.Count, q.stop
	if len(q.waiting) == 0 {
		fresh := q.overtaken(at)
		if fresh {
			at = g.Read()
		}
		dst, need, stop = q.Take(at, need, req.RegularOnly, dst)
		if need > 0 && !fresh {
			dst, need, stop = q.Take(g.Read(), need, req.RegularOnly, dst)
		}
		if need <= 0 || stop.Err != nil {
			return dst, nil, stop.Err
		}
	}
	if req.Timeout <= 0 {
		return dst, nil, &TimeoutError{For: stop.Wait}
	}
	p := &Pending{gen: g, req: req, need: need, ranges: dst}
	if q.Join(g.now(), p, stop); p.ended {
		return p.ranges, nil, p.err
	}
	return nil, p, nil
}

// now reads the clocks.
func (g *Generator) now() Instant { return Instant{g.Read(), time.Now()} }

// settle does what follows from a step of the queue: the mark is above every ID
// before it leaves, the keeper hears of growth, requests that have ended hear of
// that, and the timer is set for the requests that go on waiting. Its caller has the lock.
func (g *Generator) settle() {
	g.raise(g.core.ms + 1)
	if g.core.growth {
		g.core.growth = false
		select {
		case g.growth <- struct{}{}:
		default: // the keeper knows already
		}
	}
	for _, p := range g.q.ended {
		p.tell()
	}
	clear(g.q.ended)
	g.q.ended = g.q.ended[:0]
	if nap := g.q.nap; nap >= 0 {
		g.q.nap = -1
		if g.wake == nil {
			g.wake = time.AfterFunc(nap, g.serve)
		} else {
			g.wake.Reset(nap)
		}
	}
}

// raise raises the mark. Its caller has the lock.
func (g *Generator) raise(mark int64) {
	if mark > g.marked {
		g.marked = mark
		g.mark.RaiseMark(mark)
	}
}

// step runs one step of the queue.
func (g *Generator) step(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.q.closed {
		return
	}
	f()
	g.settle()
}

func (g *Generator) serve() { g.step(func() { g.q.Serve(g.now()) }) }

func (g *Generator) endStartup() {
	g.step(func() {
		g.core.EndStartup()
		g.q.Serve(g.now())
	})
}

// Update replaces the leases, as Core.SetLeases does. When it returns, no ID
// is made from a lease that is not among them.
func (g *Generator) Update(held []lease.Lease, cached *lease.Lease, cause error) {
	g.step(func() { g.q.Update(g.now(), held, cached, cause) })
}

// Rebase moves the stream to another timeline; see Core.Rebase.
func (g *Generator) Rebase(tl snowflake.Timeline) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.q.newest = g.Read()
	used := g.core.LastMS() > 0
	ok := g.core.Rebase(tl, g.q.newest.ms())
	if ok && used {
		g.raise(g.core.floor) // after a crash, too, no ID on the new timeline is from before the move
	}
	return ok
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
	if g.q.closed {
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

// Stop fails waiting requests, and all later ones, with ErrStopped.
func (g *Generator) Stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.startup != nil {
		g.startup.Stop()
	}
	if g.wake != nil {
		g.wake.Stop()
	}
	g.q.Close()
	g.settle()
}
