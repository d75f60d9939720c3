package kazahana

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A batch grows, up to so many times the least one, while each is used up
	// within the time.
	maxGrowth  = 64
	busyWithin = time.Millisecond
	// refillPart is the part of a batch that is used when the next one is
	// fetched: soon enough to be here in time, not before this one proves useful.
	refillPart = 16
	// wallEvery is how many IDs share a look at the wall clock, which tells of a
	// suspend and costs as much as an ID. A power of two.
	wallEvery = 16
)

// prefetcher hands out IDs that were fetched in batches.
type prefetcher struct {
	least  int
	maxAge time.Duration
	fetch  func(n int) ([]uint64, error)
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

// batch is the IDs of one answer. Nothing but used changes.
type batch struct {
	ids       []uint64
	refillAt  int64
	until     time.Duration // since start
	wallUntil int64         // Unix ns
	used      atomic.Int64
}

type fetching struct {
	done chan struct{} // closed when err is set
	err  error
}

func newPrefetcher(least int, maxAge time.Duration, fetch func(int) ([]uint64, error)) *prefetcher {
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

// take returns an ID that is fresh, if there is one.
func (p *prefetcher) take() (ID, bool) {
	b := p.now.Load()
	i := b.used.Add(1) - 1
	if i >= int64(len(b.ids)) {
		return 0, false
	}
	// The clock is read once the ID is ours: whoever is kept from running in
	// between throws it away.
	if time.Since(p.start) > b.until || i%wallEvery == 0 && time.Now().UnixNano() > b.wallUntil {
		b.used.Store(int64(len(b.ids)))
		return 0, false
	}
	if i == b.refillAt {
		p.refill()
	}
	return ID(b.ids[i]), true
}

// get returns an ID, and waits for one only where none is at hand.
func (p *prefetcher) get(ctx context.Context) (ID, error) {
	if id, ok := p.take(); ok {
		return id, nil
	}
	return p.wait(ctx)
}

func (p *prefetcher) wait(ctx context.Context) (ID, error) {
	began := time.Now()
	for {
		f := p.advance()
		if f != nil {
			select {
			case <-f.done:
			case <-ctx.Done():
				return 0, endOf(ctx, "NextID", began)
			}
			if f.err != nil {
				return 0, f.err
			}
		}
		if id, ok := p.take(); ok {
			return id, nil
		}
	}
}

// advance replaces a batch that is used up. Without another one it returns the
// fetch to wait for.
func (p *prefetcher) advance() *fetching {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.now.Load().used.Load() < int64(len(p.now.Load().ids)):
		return nil // somebody else was here
	case p.next != nil:
		p.now.Store(p.next)
		p.next = nil
		return nil
	}
	return p.begin()
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
	b := &batch{until: now + p.maxAge, wallUntil: time.Now().Add(p.maxAge).UnixNano()}
	size, era := p.size, p.era
	p.work.Go(func() { p.run(f, b, size, era) })
	return f
}

// run carries out a fetch.
func (p *prefetcher) run(f *fetching, b *batch, size int, era uint64) {
	defer close(f.done)
	b.ids, f.err = p.fetch(size)
	b.refillAt = int64(len(b.ids) / refillPart)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetching = nil
	switch now := p.now.Load(); {
	case f.err != nil || era != p.era:
	case now.used.Load() >= int64(len(now.ids)):
		p.now.Store(b)
	default:
		p.next = b
	}
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
