package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Holding is a lock that the Host renews until it is told that the holder is
// gone.
type Holding struct {
	host *Host
	name name
	lost func(Lease, error)

	renewing context.Context // ends with the holding
	stop     context.CancelFunc

	// Guarded by host.mu.
	lease     Lease
	ttl       time.Duration
	sent      time.Duration // Elapsed: when the last renewal that succeeded was sent
	until     time.Duration // Elapsed: until then it is relied on
	asked     int           // releases under way that the holder asked for by name
	gone      bool          // nobody holds it any more: if those fail, it is to be released
	releasing bool          // letGo has begun
	over      bool          // released, lost, or another Holding's
}

// Hold is Acquire, and keeps the lock from then on: the host renews it after each
// third of its term, until Release or the loss of it.
//
// lost is told, once, when a renewal was refused or when none has come through
// until shortly before the end that this host reckons with, counted from before
// the request was sent on a clock that counts suspend. Only the caller is told,
// in a goroutine of the host's; lost must return soon, and is not called once
// Release has begun.
//
// Asked again with the same RequestID, the new holding takes over from the one
// before, which is then over without being told.
//
// Errors: those of Acquire, and ErrOverloaded.
func (h *Host) Hold(ctx context.Context, want Wanted, lost func(Lease, error)) (*Holding, error) {
	h.mu.Lock()
	full := len(h.held) >= maxHeld
	h.mu.Unlock()
	if full {
		return nil, ErrOverloaded
	}
	got, err := h.acquire(ctx, want)
	if err != nil {
		return nil, err
	}
	if got.lease.Repeated {
		// A release that was under way may have gone before. Only a renewal shows
		// that there is still something to hold.
		if got, err = h.confirm(ctx, got.lease, want); err != nil {
			return nil, err
		}
	}
	g := &Holding{host: h, name: name{want.Tenant, want.Key}, lost: lost, lease: got.lease, ttl: want.TTL}
	g.renewing, g.stop = context.WithCancel(h.life)
	g.renewed(got)
	if err := h.keep(g); err != nil {
		g.stop()
		return nil, err
	}
	return g, nil
}

func (h *Host) confirm(ctx context.Context, l Lease, want Wanted) (granted, error) {
	sent := h.clock.Elapsed()
	ctx, cancel := context.WithTimeout(ctx, h.callTimeout)
	defer cancel()
	r := renewal(l, want.TTL)
	l, err := h.store.Do(ctx, r)
	switch {
	case errors.Is(err, ErrNotOwned) || errors.Is(err, ErrExpired):
		err = fmt.Errorf("%w: %w", ErrRequestReused, err)
	case err != nil && want.RequestID == "":
		h.discard(r) // it was this host that asked again, and nobody else will
	}
	return granted{l, sent}, err
}

// discard releases in the background what nobody holds.
func (h *Host) discard(r Request) {
	release := func() {
		_ = h.abandon(r, h.clock.Elapsed()+r.TTL()) // the renewal may be carried out yet
		h.wake(name{r.Tenant, r.Key})
	}
	h.mu.Lock()
	if !h.closed {
		h.work.Go(release)
		release = func() {}
	}
	h.mu.Unlock()
	release()
}

// renewal names the lease, so that it needs no request ID: done twice, it does
// the same.
func renewal(l Lease, ttl time.Duration) Request {
	return Request{Op: Renew, Tenant: l.Tenant, Key: l.Key, Owner: l.Owner, LeaseID: l.LeaseID, TTLMS: ttl.Milliseconds()}
}

// keep begins to renew, or releases what was granted too late.
func (h *Host) keep(g *Holding) error {
	h.mu.Lock()
	before := h.held[g.name]
	same := before != nil && before.lease.LeaseID == g.lease.LeaseID
	late := h.clock.Elapsed() >= g.until
	switch {
	case h.closed && !same:
		h.mu.Unlock()
		_ = h.abandon(renewal(g.lease, g.ttl), g.until)
		return ErrClosed
	case h.closed:
		h.mu.Unlock()
		return ErrClosed // which releases it
	case same && before.ending():
		h.mu.Unlock()
		return fmt.Errorf("%w: its lease is being released", ErrRequestReused)
	case same && late:
		h.mu.Unlock()
		return tooLate(g.ttl) // the holding before goes on
	case same:
		before.end()
	}
	h.held[g.name] = g
	var err error
	if late {
		err = tooLate(g.ttl)
		g.letGo()
	} else {
		h.work.Go(g.run)
	}
	h.mu.Unlock()
	if before != nil && !same {
		before.lose(fmt.Errorf("%w: this host has acquired it anew", ErrExpired))
	}
	return err
}

// Lease is the lease as of the last renewal, and what is left of it as of now.
func (g *Holding) Lease() Lease {
	g.host.mu.Lock()
	defer g.host.mu.Unlock()
	return g.asOfNow()
}

// Over reports that the lock is not kept any more: it was released, lost, or is
// kept by another Holding.
func (g *Holding) Over() bool {
	g.host.mu.Lock()
	defer g.host.mu.Unlock()
	return g.over
}

// asOfNow is under host.mu.
func (g *Holding) asOfNow() Lease { return granted{g.lease, g.sent}.asOf(g.host.clock.Elapsed()) }

func (g *Holding) renewed(got granted) {
	g.lease, g.sent = got.lease, got.sent
	g.until = reliedUntil(got.sent, got.lease.remaining())
}

// end says that there is nothing more to keep. Under host.mu.
func (g *Holding) end() {
	g.over = true
	g.stop()
	if g.host.held[g.name] == g {
		delete(g.host.held, g.name)
	}
}

// ending reports whether a release is under way, so that a refused renewal is no
// loss. Under host.mu.
func (g *Holding) ending() bool { return g.releasing || g.asked > 0 }

// run renews until the holding is over. A renewal is waited for beside the clock,
// because a store may hang, whatever its context says.
func (g *Holding) run() {
	answers := make(chan error, 1)
	asking, failures := false, 0
	var retryAt time.Duration
	for g.renewing.Err() == nil {
		r, pause, late := g.due(retryAt)
		switch {
		case late && g.giveUp(r):
			return
		case late:
			sleep(g.renewing, retryFirst) // the holder itself is releasing the lock
			continue
		case pause <= 0 && !asking:
			asking = true
			g.host.work.Go(func() { answers <- g.renew(r) })
			continue
		case asking:
			pause = watchInterval
		}
		err, answered := g.await(answers, pause)
		if !answered {
			continue
		}
		asking = false
		switch {
		case err == nil:
			failures, retryAt = 0, 0
		case definite(err) && g.lose(err):
			return
		default:
			failures++
			retryAt = g.host.clock.Elapsed() + backoff(failures, retryFirst, min(retryMost, r.TTL()/renewPart), rand.Float64())
		}
	}
}

// await waits for the answer to a renewal, but not past the lease's end.
func (g *Holding) await(answers <-chan error, pause time.Duration) (err error, answered bool) {
	timer := time.NewTimer(max(0, min(pause, g.left())))
	defer timer.Stop()
	select {
	case err = <-answers:
		return err, true
	case <-timer.C:
	case <-g.renewing.Done():
	}
	return nil, false
}

// left is how long the lease is still relied on.
func (g *Holding) left() time.Duration {
	g.host.mu.Lock()
	defer g.host.mu.Unlock()
	return g.until - g.host.clock.Elapsed()
}

// definite reports whether an answer to a renewal says that the lock is gone.
func definite(err error) bool {
	var fenced *FencedError
	return IsAnswer(err) && !errors.As(err, &fenced)
}

// due is the next renewal, how long it is not due, and whether it is too late
// for one.
func (g *Holding) due(retryAt time.Duration) (r Request, pause time.Duration, late bool) {
	g.host.mu.Lock()
	defer g.host.mu.Unlock()
	now := g.host.clock.Elapsed()
	// Of what was left then: a longer term counts once it has been asked for here.
	at := max(renewalAt(g.sent, g.lease.remaining()), retryAt)
	return renewal(g.lease, g.ttl), min(at-now, watchInterval), now >= g.until
}

// renew sends one renewal.
func (g *Holding) renew(r Request) error {
	h := g.host
	sent := h.clock.Elapsed()
	ctx, cancel := context.WithTimeout(g.renewing, h.callTimeout)
	defer cancel()
	l, err := h.store.Do(ctx, r)
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		g.renewed(granted{l, sent})
	}
	return err
}

// lose tells the holder that the lock is gone, unless it is over already, and
// reports whether it did.
func (g *Holding) lose(why error) bool {
	g.host.mu.Lock()
	tell := !g.over && !g.ending()
	l := g.asOfNow()
	if tell {
		g.end()
	}
	g.host.mu.Unlock()
	if tell {
		g.lost(l, why)
	}
	return tell
}

// giveUp is at the end that the host reckons with. The last renewal may have come
// through all the same, with nobody left to use it.
func (g *Holding) giveUp(r Request) bool {
	told := g.lose(fmt.Errorf("%w: no renewal came through in time", ErrExpired))
	if told {
		_ = g.host.abandon(r, g.host.clock.Elapsed()+r.TTL())
		g.host.wake(g.name)
	}
	return told
}

// Release releases the lock because the holder is done or gone. It returns when
// the store has answered or ctx is done; the host then goes on trying for as long
// as the lease can last.
//
// Errors: nil also when the holding was over before; ErrNotOwned or ErrExpired
// when the lock had been lost, and nobody knew; ctx's, and the store's when it
// could not be reached until the lease's end.
func (g *Holding) Release(ctx context.Context) error {
	g.host.mu.Lock()
	released := g.letGo()
	g.host.mu.Unlock()
	if released == nil {
		return nil
	}
	select {
	case err := <-released:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// letGo begins to release, unless there is nothing to or that has begun. Another
// release, which the holder asked for, is waited for, so that it is answered with
// what it did; but not by a host that is closing. Under host.mu.
func (g *Holding) letGo() <-chan error {
	g.gone = true
	if g.over || g.releasing || g.asked > 0 && !g.host.closed {
		return nil
	}
	g.releasing = true
	g.stop()
	r := renewal(g.lease, g.ttl)
	result := make(chan error, 1)
	g.host.work.Go(func() { result <- g.release(r) })
	return result
}

func (g *Holding) release(r Request) error {
	h := g.host
	// A renewal that is under way may be carried out yet, and begin a new term.
	err := h.abandon(r, h.clock.Elapsed()+r.TTL())
	h.mu.Lock()
	g.end()
	h.mu.Unlock()
	h.wake(g.name)
	return err
}

// allow prepares for a change that the holder itself asks for.
func (g *Holding) allow(r Request) error {
	h := g.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Op == Release {
		g.asked++
		return nil
	}
	if r.TTL() < g.ttl {
		return fmt.Errorf("%w: the lock is held for terms of %v, and cannot be renewed for %v", ErrInvalid, g.ttl, r.TTL())
	}
	g.ttl = r.TTL()
	return nil
}

// changed is after a release that the holder itself asked for.
func (g *Holding) changed(l Lease, err error) {
	h := g.host
	h.mu.Lock()
	defer h.mu.Unlock()
	g.asked--
	switch {
	case err == nil && l.LeaseID == g.lease.LeaseID:
		g.end()
	case g.gone:
		g.letGo()
	}
}
