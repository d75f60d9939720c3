package kazahana

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Batches grow up to maxGrowth times the smallest while each is used up within the
	// time. 64 times 64 IDs are 37 KB, which come with one read; larger answers cost more
	// per ID.
	maxGrowth  = 64
	busyWithin = time.Millisecond
	// refillPart is the used part of a batch at which the next one is fetched: early
	// enough to arrive in time, and not before this one proves useful.
	refillPart = 16
	// wallEvery is how many IDs share a reading of the wall clock, which reveals a suspend
	// and costs nearly as much as an ID. A power of two.
	wallEvery = 16
)

// prefetcher hands out IDs from batches.
type prefetcher struct {
	least  int
	maxAge time.Duration
	fetch  func(n int) ([]run, error)
	start  time.Time // of the monotonic clock that ages are counted by
	now    atomic.Pointer[batch]
	work   sync.WaitGroup

	mu       sync.Mutex // guards the rest, and the replacement of now
	next     *batch
	fetching *fetching
	era      uint64 // batches of an earlier one are not used
	size     int
	asked    time.Duration // when the last fetch began
	closed   bool
}

// batch is IDs of one answer that follow each other without a gap, as most do.
// Nothing but used changes.
type batch struct {
	first     ID
	count     int64
	refillAt  int64         // fetch another answer with this one of them; -1: do not
	until     time.Duration // since start
	wallUntil int64         // Unix ns
	rest      *batch        // what comes behind in the answer
	used      atomic.Int64
}

func (b *batch) usedUp() bool { return b.used.Load() >= b.count }

type fetching struct {
	done chan struct{} // closed when err is set
	err  error
	// queue holds the waiting calls, longest first; guarded by the prefetcher's mu. They
	// are served first: otherwise a goroutine that takes IDs without a pause would leave
	// them none of any batch.
	queue []chan given
}

// given is the ID of one who waited.
type given struct {
	id ID
	of *batch
}

func newPrefetcher(least int, maxAge time.Duration, fetch func(int) ([]run, error)) *prefetcher {
	p := &prefetcher{least: least, maxAge: maxAge, fetch: fetch, start: time.Now(), size: least, asked: -busyWithin}
	p.now.Store(new(batch))
	return p
}

// close returns when no fetch is under way. The channel is closed already.
func (p *prefetcher) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.drop()
	p.work.Wait()
}

// take returns a fresh ID, if there is one. Most of its time goes into the clock, which it
// reads after it has taken the ID: so a goroutine that was stopped in between throws the ID
// away. A time noted by another goroutine would cost nothing, but be late exactly when this
// process was stopped.
func (p *prefetcher) take() (ID, bool) {
	b := p.now.Load()
	i := b.used.Add(1) - 1
	if i >= b.count {
		return 0, false
	}
	var fresh bool
	if i%wallEvery == 0 {
		now := time.Now()
		fresh = now.Sub(p.start) <= b.until && now.UnixNano() <= b.wallUntil
	} else {
		fresh = time.Since(p.start) <= b.until
	}
	if !fresh {
		b.used.Store(b.count)
		return 0, false
	}
	if i == b.refillAt {
		p.refill()
	}
	return b.first + ID(i), true
}

// wait returns an ID that is not at hand yet.
func (p *prefetcher) wait(l limit) (ID, error) {
	for {
		f, mine := p.advance()
		if f != nil {
			if !l.wait(f.done) {
				return 0, l.end("NextID")
			}
			if f.err != nil {
				return 0, f.err
			}
			select {
			case g := <-mine:
				// An ID that was asked for since the call began sorts rightly, however slow
				// the answer was.
				now, began := time.Now(), l.began.Sub(p.start)
				if began <= g.of.until-p.maxAge || now.Sub(p.start) <= g.of.until && now.UnixNano() <= g.of.wallUntil {
					return g.id, nil
				}
			default: // there were not enough
			}
		}
		if id, ok := p.take(); ok {
			return id, nil
		}
	}
}

// advance replaces a batch that is used up. Without another one it returns the
// fetch to wait for, which gives an ID unless it brings too few.
func (p *prefetcher) advance() (*fetching, <-chan given) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch now := p.now.Load(); {
	case !now.usedUp():
		return nil, nil // another goroutine was faster
	case now.rest != nil:
		p.now.Store(now.rest)
		return nil, nil
	case p.next != nil:
		p.now.Store(p.next)
		p.next = nil
		return nil, nil
	}
	f, mine := p.begin(), make(chan given, 1)
	f.queue = append(f.queue, mine)
	return f, mine
}

func (p *prefetcher) refill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.begin()
	}
}

// begin fetches a batch, unless one is on its way. mu is held.
func (p *prefetcher) begin() *fetching {
	switch {
	case p.fetching != nil:
		return p.fetching
	case p.closed:
		f := &fetching{done: make(chan struct{}), err: ErrClosed}
		close(f.done)
		return f
	}
	now := time.Since(p.start)
	if p.size /= 2; now-p.asked < busyWithin {
		p.size *= 4
	}
	p.size = min(max(p.size, p.least), maxGrowth*p.least, MaxBatch)
	p.asked = now
	f := &fetching{done: make(chan struct{})}
	p.fetching = f
	// An ID is not older than the request for it.
	until, wallUntil := now+p.maxAge, time.Now().Add(p.maxAge).UnixNano()
	size, era := p.size, p.era
	p.work.Add(1)
	go func() {
		defer p.work.Done()
		defer close(f.done)
		var runs []run // none with an error
		runs, f.err = p.fetch(size)
		p.accept(chain(runs, until, wallUntil), era)
	}()
	return f
}

// run is IDs without a gap.
type run struct {
	start ID
	count int
}

func total(runs []run) (n int) {
	for _, r := range runs {
		n += r.count
	}
	return n
}

// chain makes batches of an answer.
func chain(runs []run, until time.Duration, wallUntil int64) (first *batch) {
	end := int64(total(runs))
	refillAt := end / refillPart
	for i := len(runs) - 1; i >= 0; i-- {
		r := runs[i]
		first = &batch{first: r.start, count: int64(r.count), refillAt: -1, until: until, wallUntil: wallUntil, rest: first}
		if end -= first.count; end <= refillAt && refillAt < end+first.count {
			first.refillAt = refillAt - end
		}
	}
	return first
}

// accept puts an answer where take finds it.
func (p *prefetcher) accept(b *batch, era uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fetching != nil && era == p.era {
		b = b.serve(p.fetching.queue)
	}
	p.fetching = nil
	switch now := p.now.Load(); {
	case b == nil || era != p.era:
	case now.usedUp() && now.rest == nil:
		p.now.Store(b)
	default:
		p.next = b
	}
}

// serve gives an ID to each who waits, as far as there are enough, and returns
// the batches that are left.
func (b *batch) serve(queue []chan given) *batch {
	for _, mine := range queue {
		for b != nil && b.usedUp() {
			b = b.rest
		}
		if b == nil {
			return nil
		}
		mine <- given{b.first + ID(b.used.Add(1)-1), b}
		if b.refillAt >= 0 {
			b.refillAt = min(max(b.refillAt, b.used.Load()), b.count-1)
		}
	}
	return b
}

// drop forgets what is here or on its way, because greater IDs have been
// handed out.
func (p *prefetcher) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.era++
	p.next = nil
	p.now.Store(new(batch))
}
