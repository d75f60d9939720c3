package kazahana

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Batches grow up to maxGrowth times the smallest while each is used up within the
	// time. 64 times 64 IDs are 37 KB; larger answers cost more per ID.
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
	life   context.Context // of the client
	least  int
	maxAge time.Duration
	fetch  func(n int) ([]ID, error)
	start  time.Time // of the monotonic clock that ages are counted by
	now    atomic.Pointer[batch]

	mu    sync.Mutex     // guards the rest, and the replacement of now
	work  sync.WaitGroup // the fetches under way
	next  *batch         // on its way, or here already
	size  int            // of the last one
	asked time.Duration  // when its fetch began
}

// batch is the IDs of one answer. mu guards it until it has come; then only used changes.
type batch struct {
	came      chan struct{} // closed when ids or err are set
	ids       []ID
	err       error
	until     time.Duration // since start
	wallUntil int64         // Unix ns
	refillAt  int64         // fetch the next batch with this one of them
	// used counts the callers that have got an ID, or wait for one: the first ones are theirs.
	// Otherwise a goroutine that takes IDs without a pause would leave them none of any batch.
	used atomic.Int64
}

func (b *batch) isUsedUp() bool { return b.used.Load() >= int64(len(b.ids)) }

func newPrefetcher(life context.Context, least int, maxAge time.Duration, fetch func(int) ([]ID, error)) *prefetcher {
	p := &prefetcher{life: life, least: least, maxAge: maxAge, fetch: fetch, start: time.Now(), size: least, asked: -busyWithin}
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
	if i == b.refillAt {
		p.refill()
	}
	return b.ids[i], true
}

// wait returns an ID that is not at hand yet.
func (p *prefetcher) wait(ctx context.Context, timeout time.Duration) (ID, error) {
	a := newAttempts(ctx, p.life, timeout, "NextID")
	for {
		b, mine, err := p.advance()
		if err != nil {
			return 0, err
		}
		if b != nil {
			if !a.wait(time.Until(a.deadline), b.came) {
				return 0, a.over()
			}
			a.last = b.err
			asked, now := b.until-p.maxAge, time.Since(p.start)
			isNew := a.began.Sub(p.start) <= asked
			isFresh := now <= b.until && time.Now().UnixNano() <= b.wallUntil
			switch {
			// When the time of a fetch is over, calls that began after it still have time for
			// another one.
			case b.err != nil && (isNew || now < asked+DaemonTime(timeout) && !errors.Is(b.err, ErrTimeout)):
				return 0, b.err
			// An ID that was asked for since the call began sorts rightly, however slow the
			// answer was.
			case b.err == nil && mine < len(b.ids) && (isNew || isFresh):
				return b.ids[mine], nil
			}
		}
		if id, ok := p.take(); ok {
			return id, nil
		}
	}
}

// advance replaces a batch that is used up. Without another one it returns the batch to
// wait for, and which of its IDs is the caller's.
func (p *prefetcher) advance() (b *batch, mine int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.life.Err() != nil:
		return nil, 0, ErrClosed
	case !p.now.Load().isUsedUp():
		return nil, 0, nil // another goroutine was faster
	case p.next == nil:
		p.begin()
	}
	if b = p.next; b.ids != nil {
		p.now.Store(b)
		p.next = nil
		return nil, 0, nil
	}
	return b, int(b.used.Add(1) - 1), nil
}

func (p *prefetcher) refill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil && p.life.Err() == nil {
		p.begin()
	}
}

// begin fetches the next batch. mu is held.
func (p *prefetcher) begin() {
	now := time.Since(p.start)
	if p.size /= 2; now-p.asked < busyWithin {
		p.size *= 4
	}
	p.size = min(max(p.size, p.least), maxGrowth*p.least, MaxBatch)
	p.asked = now
	// An ID is not older than the request for it.
	p.next = &batch{came: make(chan struct{}), until: now + p.maxAge, wallUntil: time.Now().Add(p.maxAge).UnixNano()}
	p.work.Add(1)
	go p.accept(p.next, p.size)
}

// accept fetches a batch, and puts it where take finds it.
func (p *prefetcher) accept(b *batch, size int) {
	defer p.work.Done()
	ids, err := p.fetch(size)
	p.mu.Lock()
	defer p.mu.Unlock()
	defer close(b.came)
	b.err = err
	if p.next != b {
		return // dropped: waiting callers get none of it
	}
	b.ids, b.refillAt = ids, max(int64(len(ids)/refillPart), b.used.Load())
	if err != nil || p.now.Load().isUsedUp() {
		p.next = nil
	}
	if p.next == nil && err == nil {
		p.now.Store(b)
	}
}

// drop forgets IDs that are here or on their way, because greater IDs have been handed out.
func (p *prefetcher) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = nil
	p.now.Store(new(batch))
}
