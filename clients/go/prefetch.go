package kazahana

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Batches grow up to maxGrowth times the smallest while each is used up within the
	// time. 64 times 64 IDs are 37 KB; larger answers cost more per ID.
	maxGrowth  = 64
	busyWithin = time.Millisecond
	// wallEvery is how many IDs share a reading of the wall clock, which reveals a suspend
	// and costs nearly as much as an ID. A power of two.
	wallEvery = 16
)

// prefetcher hands out IDs from batches.
type prefetcher struct {
	least  int
	maxAge time.Duration
	fetch  func(ctx context.Context, timeout time.Duration, n int) ([]ID, error)
	start  time.Time // of the monotonic clock that ages are counted by
	now    atomic.Pointer[batch]

	mu    sync.Mutex    // guards the rest, and the replacement of now
	next  *batch        // on its way: one caller fetches it, and others wait for it
	size  int           // of the last one
	asked time.Duration // when its fetch began
}

// batch is the IDs of one answer. mu guards it until it has come; then only used changes.
type batch struct {
	came      chan struct{} // closed when the fetch has ended
	size      int           // how many IDs are asked for
	ids       []ID          // nil: the fetch has failed
	asked     time.Duration // since start
	until     time.Duration // since start
	wallUntil int64         // Unix ns
	// used counts the callers that have got an ID, or wait for one: the first ones are theirs.
	// Otherwise a goroutine that takes IDs without a pause would leave them none of any batch.
	used atomic.Int64
}

func newPrefetcher(least int, maxAge time.Duration, fetch func(context.Context, time.Duration, int) ([]ID, error)) *prefetcher {
	p := &prefetcher{least: least, maxAge: maxAge, fetch: fetch, start: time.Now(), size: least, asked: -busyWithin}
	p.now.Store(new(batch))
	return p
}

// take returns a fresh ID, if there is one. Most of its time goes into the clock, which it
// reads after it has taken the ID: so a goroutine that was stopped in between throws the ID
// away. A time noted by another goroutine would cost nothing, but be late exactly when this
// process was stopped.
func (p *prefetcher) take() (ID, bool) {
	b := p.now.Load()
	i := b.used.Add(1) - 1
	if i >= int64(len(b.ids)) {
		return 0, false
	}
	if time.Since(p.start) > b.until || i%wallEvery == 0 && time.Now().UnixNano() > b.wallUntil {
		b.used.Store(int64(len(b.ids)))
		return 0, false
	}
	return b.ids[i], true
}

// wait returns an ID that is not at hand yet. Each caller has its own time: after a fetch that
// failed, one of the callers that waited for it begins another.
func (p *prefetcher) wait(ctx context.Context, timeout time.Duration) (ID, error) {
	a := newAttempts(ctx, timeout, "NextID")
	for {
		b, mine := p.join()
		switch {
		case b == nil: // another caller was faster
		case mine == 0:
			if err := p.fill(ctx, time.Until(a.deadline), b); err != nil {
				return 0, err
			}
		case !a.wait(time.Until(a.deadline), b.came):
			return 0, a.over()
		}
		// An ID that was asked for since the call began sorts rightly, however slow the
		// answer was.
		if b != nil && mine < len(b.ids) && (a.began.Sub(p.start) <= b.asked || p.isFresh(b)) {
			return b.ids[mine], nil
		}
		if id, ok := p.take(); ok {
			return id, nil
		}
	}
}

func (p *prefetcher) isFresh(b *batch) bool {
	return time.Since(p.start) <= b.until && time.Now().UnixNano() <= b.wallUntil
}

// join returns the batch to wait for, and which of its IDs is the caller's: who has the first
// one fetches it. Without a batch, there are IDs already.
func (p *prefetcher) join() (b *batch, mine int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.now.Load(); now.used.Load() < int64(len(now.ids)) {
		return nil, 0
	}
	if p.next == nil {
		asked := time.Since(p.start)
		if p.size /= 2; asked-p.asked < busyWithin {
			p.size *= 4
		}
		p.size = min(max(p.size, p.least), maxGrowth*p.least, MaxBatch)
		p.asked = asked
		// An ID is not older than the request for it.
		p.next = &batch{came: make(chan struct{}), size: p.size, asked: asked, until: asked + p.maxAge, wallUntil: time.Now().Add(p.maxAge).UnixNano()}
	}
	return p.next, int(p.next.used.Add(1) - 1)
}

// fill fetches a batch, and puts it where take finds it.
func (p *prefetcher) fill(ctx context.Context, timeout time.Duration, b *batch) error {
	ids, err := p.fetch(ctx, timeout, b.size)
	p.mu.Lock()
	defer p.mu.Unlock()
	defer close(b.came)
	if p.next == b { // or it was dropped: waiting callers get none of it
		p.next = nil
		if err == nil {
			b.ids = ids
			p.now.Store(b)
		}
	}
	return err
}

// drop forgets IDs that are here or on their way, because greater IDs have been handed out.
func (p *prefetcher) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = nil
	p.now.Store(new(batch))
}
