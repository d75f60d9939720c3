package lock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Errors of a Host beside those of its Store.
var (
	// ErrClosed: the host is stopping.
	ErrClosed = errors.New("the host of the locks is stopping")
	// ErrOverloaded: the host keeps as many locks as it can.
	ErrOverloaded = fmt.Errorf("this host keeps %d locks already, and no more", maxHeld)
)

// Clock measures intervals, suspend included. It never goes back and nobody sets
// it.
type Clock interface {
	Elapsed() time.Duration
}

// name is what a lock is called.
type name struct{ tenant, key string }

// Host is what the processes of one host, or the clients of one server, ask for
// locks: a Store with waiting, and with renewal by the host.
//
// Waiting is first come, first served per lock among those who ask this Host.
// Only the first in line asks the store: at once when a lock is released through
// this host, else when the store tells of a release (Store.Notify) or has waited by
// itself (Store.AcquireWithin), else when the lease that stands in the way should end, and now
// and then before, in case it was released.
type Host struct {
	store       Store
	waits       bool // the store can wait by itself
	clock       Clock
	callTimeout time.Duration

	life   context.Context // ends with Close: nothing new is begun
	stop   context.CancelFunc
	final  context.Context // ends when Close gives up on what is still to be released
	giveUp context.CancelFunc
	work   sync.WaitGroup // every goroutine; added to under mu, while not closed or for what is held

	mu     sync.Mutex // guards all below, and the fields of lines, waiters and holdings that say so
	closed bool
	lines  map[name]*line
	held   map[name]*Holding
}

// NewHost returns a Host. callTimeout bounds each request to the store.
func NewHost(store Store, clock Clock, callTimeout time.Duration) *Host {
	h := &Host{store: store, waits: canWait(store), clock: clock, callTimeout: callTimeout, lines: map[name]*line{}, held: map[name]*Holding{}}
	h.life, h.stop = context.WithCancel(context.Background())
	h.final, h.giveUp = context.WithCancel(context.Background())
	return h
}

// Wanted is a lock that somebody asks for.
type Wanted struct {
	Tenant, Key, Owner string // as in Request

	// RequestID is the caller's, if it may ask again: then a request of which
	// nobody knows what became is left to it. Without, it is released.
	RequestID string

	// LeaseID is as in Request; empty means a new one.
	LeaseID string

	TTL time.Duration

	// Wait is how long the lock may be waited for; 0 for an answer at once, and
	// negative for as long as the caller's context allows.
	Wait time.Duration

	// Elsewhere: a caller that gives up may ask again with the same RequestID on
	// another Host, so that what it was granted meanwhile must not be released.
	Elsewhere bool
}

// NewLeaseID returns the name of a lease that may be granted: 128 random bits in
// hexadecimal.
func NewLeaseID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Acquire acquires the lock, for the TTL. When the context ends first, the caller
// leaves the line, and what it may have been granted meanwhile is released.
//
// What remains of the lease is told as of now, so that a caller who waited may
// count it from when it got the answer.
//
// Errors: those of Store.Do, *HeldError when the wait is over, ErrExpired when the
// answer came after the lease's end, the context's, and ErrClosed.
func (h *Host) Acquire(ctx context.Context, want Wanted) (Lease, error) {
	l, _, err := h.AcquireTimed(ctx, want)
	return l, err
}

// AcquireTimed also tells how long it took, up to the moment as of which it tells
// what remains of the lease: from the call on, that is both of them together.
func (h *Host) AcquireTimed(ctx context.Context, want Wanted) (l Lease, took time.Duration, err error) {
	began := h.clock.Elapsed()
	got, err := h.acquire(ctx, want)
	if err != nil {
		return Lease{}, 0, err
	}
	now := h.clock.Elapsed()
	if l = got.asOf(now); l.RemainingMS == 0 {
		return Lease{}, 0, tooLate(want.TTL)
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

// asOf is the lease with what is left of it by now, at least.
func (g granted) asOf(now time.Duration) Lease {
	l := g.lease
	l.RemainingMS = max(0, (l.remaining() - (now - g.sent) - storeTick).Milliseconds())
	return l
}

func (h *Host) acquire(ctx context.Context, want Wanted) (granted, error) {
	w := &waiter{values: ctx, elsewhere: want.Elsewhere, anonymous: want.RequestID == "", done: make(chan struct{})}
	w.request = Request{
		Op: Acquire, Tenant: want.Tenant, Key: want.Key, Owner: want.Owner,
		RequestID: want.RequestID, LeaseID: want.LeaseID, TTLMS: want.TTL.Milliseconds(),
	}
	if w.request.LeaseID == "" {
		w.request.LeaseID = NewLeaseID()
	}
	if w.anonymous {
		w.request.RequestID = w.request.LeaseID // the host itself asks again
	}
	if err := w.request.Validate(); err != nil {
		return granted{}, err
	}
	if ctx.Err() != nil {
		return granted{}, context.Cause(ctx)
	}
	var timeUp <-chan time.Time
	if want.Wait > 0 {
		timer := time.NewTimer(want.Wait)
		defer timer.Stop()
		timeUp, w.until = timer.C, h.clock.Elapsed()+want.Wait
	}
	w.late, w.patient = want.Wait == 0, want.Wait < 0
	l, err := h.join(w)
	if err != nil {
		return granted{}, err
	}
	for {
		select {
		case <-w.done:
			return w.granted, w.err
		case <-timeUp:
			l.timeUp(w)
		case <-ctx.Done():
			if l.leave(w) {
				return granted{}, context.Cause(ctx)
			}
			return w.granted, w.err // settled just before
		}
	}
}

// HasLine reports whether anybody waits for the lock here, whom nobody who asks
// the store by itself should overtake.
func (h *Host) HasLine(tenant, key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lines[name{tenant, key}] != nil
}

// Change renews or releases, once. A lock that this host keeps by Hold is no
// longer kept once it is released, and is not renewed for less than it is held
// for.
//
// Errors: those of Store.Do.
func (h *Host) Change(ctx context.Context, r Request) (Lease, error) {
	if err := r.Validate(); err != nil {
		return Lease{}, err
	}
	if r.Op == Acquire {
		return Lease{}, fmt.Errorf("%w: an acquire waits in line", ErrInvalid)
	}
	holding := h.holdingOf(r)
	if holding != nil {
		if err := holding.allow(r); err != nil {
			return Lease{}, err
		}
	}
	l, err := h.store.Do(ctx, r)
	if r.Op == Release {
		if holding != nil {
			holding.changed(l, err)
		}
		if err == nil || !IsAnswer(err) {
			h.wake(name{r.Tenant, r.Key})
		}
	}
	return l, err
}

// holdingOf is what this host keeps and the request is about.
func (h *Host) holdingOf(r Request) *Holding {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.held[name{r.Tenant, r.Key}]
	if g == nil || g.lease.Owner != r.Owner || r.LeaseID != "" && r.LeaseID != g.lease.LeaseID {
		return nil
	}
	return g
}

// wake has the first in line ask again at once.
func (h *Host) wake(n name) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.lines[n]; l != nil {
		l.forget()
	}
}

// abandon releases a lease that nobody wants, or that was perhaps never granted,
// and asks until there is an answer or it has ended by itself at the time.
func (h *Host) abandon(r Request, end time.Duration) error {
	r.Op, r.RequestID, r.TTLMS = Release, "", 0
	for failures := 1; ; failures++ {
		ctx, cancel := context.WithTimeout(h.final, h.callTimeout)
		_, err := h.store.Do(ctx, r)
		cancel()
		pause := h.retryIn(failures)
		if IsAnswer(err) || h.clock.Elapsed()+pause >= end || !sleep(h.final, pause) {
			return err
		}
	}
}

// sleep waits, and reports whether it could before the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Close ends all waiting with ErrClosed and releases the locks that this host
// keeps, for as long as ctx allows. It does not close the store.
func (h *Host) Close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	h.stop()
	for _, l := range h.lines {
		for _, w := range slices.Clone(l.queue) {
			l.refuse(w, ErrClosed)
		}
	}
	for _, g := range h.held {
		g.letGo()
	}
	h.mu.Unlock()
	done := make(chan struct{})
	go func() {
		h.work.Wait()
		close(done)
	}()
	defer h.giveUp()
	select {
	case <-done:
		return nil
	case <-ctx.Done(): // a store may hang, whatever its context says
		return context.Cause(ctx)
	}
}
