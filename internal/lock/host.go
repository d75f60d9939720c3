package lock

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/keyname"
	"github.com/kazahana/kazahana/internal/record"
)

// Errors of a Host beside those of its Store.
var (
	// ErrClosed: the host is stopping.
	ErrClosed = errors.New("the host of the locks is stopping")
	// ErrOverloaded: the host keeps as many locks as it can.
	ErrOverloaded = fmt.Errorf("this host keeps %d locks already, and no more", MaxHeld)
)

// Clock measures intervals, suspend included. It never goes back and cannot be set.
type Clock interface {
	Elapsed() time.Duration
}

// name is the name of a lock.
type name struct{ tenant, key string }

// Host gives locks to the processes of one host, or the clients of one server: a Store with
// waiting, and with renewal by the host.
//
// Waiting is first come, first served per lock among the callers of this Host. Only the
// first in the queue asks the store: at once when a lock is released through this host,
// else when the store tells of a release (Store.Notify) or has waited by itself
// (Store.Waits), else when the lease that stands in the way should end, and now and then
// before, in case it was released.
type Host struct {
	store       Store
	clock       Clock
	callTimeout time.Duration

	life   context.Context // ends with Close: nothing new is begun
	stop   context.CancelFunc
	final  context.Context // ends when Close gives up on the releases still to come
	giveUp context.CancelFunc

	mu   sync.Mutex    // guards the core, with its queues, waiters and holdings
	core hostCore      // decides; the rest of Host carries events to it and calls from it
	done chan struct{} // closed when the host is closed and nothing is under way
}

// NewHost returns a Host. callTimeout bounds each request to the store.
func NewHost(store Store, clock Clock, callTimeout time.Duration) *Host {
	h := &Host{store: store, clock: clock, callTimeout: callTimeout, done: make(chan struct{})}
	h.core = hostCore{random: mathrand.Float64, waits: store.Waits(), queues: map[name]*waitQueue{}, held: map[name]*Holding{}, doomed: map[string]bool{}}
	h.life, h.stop = context.WithCancel(context.Background())
	h.final, h.giveUp = context.WithCancel(context.Background())
	return h
}

// UseRandom replaces the source of the pauses' spread, in [0, 1), before the first call:
// then a seed repeats a run.
func (h *Host) UseRandom(random func() float64) { h.core.random = random }

// turn gives the core one event, and begins what follows from it.
func (h *Host) turn(event func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &h.core
	c.now = h.clock.Elapsed()
	event()
	for _, one := range c.calls {
		h.begin(one)
	}
	for _, l := range c.listeners {
		h.listen(l)
	}
	for _, a := range c.alarms {
		if a.timer == nil {
			a.timer = time.AfterFunc(a.at-c.now, func() { h.turn(a.ring) })
		} else {
			a.timer.Reset(a.at - c.now)
		}
	}
	c.calls, c.listeners, c.alarms = nil, nil, nil
	if c.closed && c.open == 0 {
		select {
		case <-h.done:
		default:
			close(h.done)
		}
	}
}

// begin carries out a call in a goroutine. Under mu.
func (h *Host) begin(one *call) {
	ctx := WithValues(h.life, one.values)
	if one.final {
		ctx = h.final
	}
	ctx, one.cancel = context.WithTimeout(ctx, h.callTimeout+one.request.Wait)
	go func() {
		record.MakeRoom()
		defer one.cancel()
		var l Lease
		var err error
		if one.tell != nil {
			one.tell()
		} else {
			l, err = h.store.Do(ctx, one.request)
		}
		h.turn(func() {
			h.core.open--
			one.ended(l, err)
		})
	}()
}

// listen asks the store to tell a queue of releases. Under mu.
func (h *Host) listen(l *waitQueue) {
	ctx, cancel := context.WithCancel(h.life)
	l.deafen = cancel
	go func() {
		timeout := time.AfterFunc(h.callTimeout, cancel)
		tokens, err := h.store.Notify(ctx, l.name.tenant, l.name.key)
		if timeout.Stop() && err == nil {
			h.turn(l.subscribed)
			for range tokens {
				h.turn(l.news)
			}
		}
		ended := ctx.Err() == nil // and not by this host
		cancel()
		h.turn(func() {
			h.core.open--
			l.unsubscribed(ended && err == nil)
		})
	}()
}

// WithValues returns a context that ends when ctx does, and carries the values of another
// too, which may be nil.
func WithValues(ctx, values context.Context) context.Context { return withValues{ctx, values} }

type withValues struct {
	context.Context
	values context.Context
}

// Value implements context.Context.
func (c withValues) Value(key any) any {
	if own := c.Context.Value(key); own != nil || c.values == nil { // what concerns its end, above all
		return own
	}
	return c.values.Value(key)
}

// NewLeaseID returns the name of a lease that may be granted, or a request ID.
func NewLeaseID() string { return keyname.NewRequestID() }

// Acquire acquires the lock, with any Op in the request. An empty LeaseID stands for a new
// one. When the context ends first, the caller leaves the queue, and a lease that it may have
// been granted meanwhile is released. A caller with a RequestID may ask again: its own request
// with an unknown outcome is left to it.
//
// The lease's remaining time is as of now, so a caller that waited may count it from the moment
// of the answer.
//
// Errors: those of Store.Do, *HeldError when the wait is over, ErrExpired when the
// answer came after the lease's end, the context's, and ErrClosed.
func (h *Host) Acquire(ctx context.Context, r Request) (Lease, error) {
	l, _, err := h.AcquireTimed(ctx, r)
	return l, err
}

// AcquireTimed also returns how long it took up to the moment that the remaining time
// of the lease counts from. Counted from the call, the lease ends after both together.
func (h *Host) AcquireTimed(ctx context.Context, r Request) (l Lease, took time.Duration, err error) {
	began := h.clock.Elapsed()
	got, err := h.acquire(ctx, r)
	if err != nil {
		return Lease{}, 0, err
	}
	if got.lease.Repeated {
		if h.turn(func() { err = h.core.isDoomed(got.lease) }); err != nil {
			return Lease{}, 0, err
		}
	}
	now := h.clock.Elapsed()
	if l = got.asOf(now); l.RemainingMS == 0 {
		return Lease{}, 0, tooLate(r.TTL())
	}
	return l, now - began, nil
}

func tooLate(ttl time.Duration) error {
	return fmt.Errorf("%w: its term of %v was over before the store's answer came", ErrExpired, ttl)
}

// granted is a lease, and when it was asked for.
type granted struct {
	lease Lease
	sent  time.Duration // by the host's clock
}

// asOf returns the lease with the least rest that it has by now.
func (g granted) asOf(now time.Duration) Lease {
	l := g.lease
	l.RemainingMS = max(0, (l.remaining() - (now - g.sent) - storeTick).Milliseconds())
	return l
}

func (h *Host) acquire(ctx context.Context, r Request) (granted, error) {
	w := newWaiter(ctx, r)
	if err := w.request.Validate(); err != nil {
		return granted{}, err
	}
	if ctx.Err() != nil {
		return granted{}, context.Cause(ctx)
	}
	var timeUp <-chan time.Time
	if r.Wait > 0 {
		timer := time.NewTimer(r.Wait)
		defer timer.Stop()
		timeUp = timer.C
	}
	var l *waitQueue
	h.turn(func() { l = h.core.join(w, r.Wait) })
	for {
		select {
		case <-w.done:
			return w.granted, w.err
		case <-timeUp:
			h.turn(func() { l.timeUp(w) })
		case <-ctx.Done():
			h.turn(func() { l.leave(w, context.Cause(ctx)) })
			return w.granted, w.err
		}
	}
}

// HasQueue reports whether requests wait for the lock here. A caller that asks the store by
// itself would overtake those in it.
func (h *Host) HasQueue(tenant, key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.core.queues[name{tenant, key}] != nil
}

// Change renews or releases, once. A lock that this host keeps by Hold is no
// longer kept once it is released. A renewal for a term that is less than it is
// held for is refused.
//
// Errors: those of Store.Do.
func (h *Host) Change(ctx context.Context, r Request) (Lease, error) {
	if err := r.Validate(); err != nil {
		return Lease{}, err
	}
	if r.Op == Acquire {
		return Lease{}, fmt.Errorf("%w: an acquire waits in the queue", ErrInvalid)
	}
	var holding *Holding
	var err error
	h.turn(func() { holding, err = h.core.mayChange(r) })
	if err != nil {
		return Lease{}, err
	}
	l, err := h.store.Do(ctx, r)
	h.turn(func() {
		if holding != nil {
			holding.changed(r, l, err)
		}
		if r.Op == Release && (err == nil || !IsAnswer(err)) {
			h.core.wake(name{r.Tenant, r.Key})
		}
	})
	return l, err
}

// Close ends all waiting with ErrClosed and releases the locks that this host
// keeps, for as long as ctx allows. It does not close the store.
func (h *Host) Close(ctx context.Context) error {
	h.turn(func() {
		h.core.closed = true
		h.stop()
		for _, l := range h.core.queues {
			for _, w := range slices.Clone(l.waiters) {
				l.refuse(w, ErrClosed)
			}
			l.step()
		}
		for _, g := range h.core.held {
			g.letGo()
		}
	})
	defer func() {
		h.giveUp()
		h.turn(func() { h.core.gaveUp = true })
	}()
	select {
	case <-h.done:
		return nil
	case <-ctx.Done(): // a store may hang, also after its context ends
		return context.Cause(ctx)
	}
}
