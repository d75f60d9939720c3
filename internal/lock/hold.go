package lock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Holding is a lock that the Host renews until the holder releases it or is gone. It is
// a part of the host's core.
type Holding struct {
	host *Host
	name name
	lost func(Lease, error)

	lease     Lease
	ttl       time.Duration // what renewals ask for
	taken     time.Duration // the longest term that the store has granted; ttl can be longer until it has answered
	sent      time.Duration // when the last renewal that succeeded was sent
	until     time.Duration // until then the lease is relied on
	renewal   *call         // under way
	failures  int           // renewals that failed in a row
	retryAt   time.Duration // no renewal before
	alarm     alarm
	asked     int  // releases under way that the holder asked for by name
	gone      bool // the holder is: if those fail, the lock is to be released
	releasing bool // letGo has begun
	over      bool // released, lost, or another Holding's
}

// Hold is Acquire, and keeps the lock from then on: the host renews it after each
// third of its term, until Release or the loss of it.
//
// lost is called once, when a renewal was refused or when none has come through
// until shortly before the end that this host reckons with, counted from before
// the request was sent on a clock that counts suspend. It is called in a goroutine of
// the host's, must return soon, and is not called once Release has begun.
//
// Asked again with the same RequestID, the new holding takes over from the one
// before, which is then over without a call of its lost.
//
// Errors: those of Acquire, and ErrOverloaded.
func (h *Host) Hold(ctx context.Context, r Request, lost func(Lease, error)) (*Holding, error) {
	h.mu.Lock()
	full := len(h.core.held) >= MaxHeld
	h.mu.Unlock()
	if full {
		return nil, ErrOverloaded
	}
	got, err := h.acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	if got.lease.Repeated {
		// A release that was under way may have gone before. Only a renewal shows
		// that there is still something to hold.
		if got, err = h.confirm(ctx, got.lease, r); err != nil {
			return nil, err
		}
	}
	g := &Holding{host: h, name: name{r.Tenant, r.Key}, lost: lost, ttl: r.TTL(), taken: r.TTL()}
	g.alarm.ring = g.step
	g.renewed(got)
	if h.turn(func() { err = g.start() }); err != nil {
		return nil, err
	}
	return g, nil
}

// confirm renews a lease that the store has granted before.
func (h *Host) confirm(ctx context.Context, l Lease, asked Request) (granted, error) {
	sent := h.clock.Elapsed()
	ctx, cancel := context.WithTimeout(ctx, h.callTimeout)
	defer cancel()
	r := renewal(l, asked.TTL())
	l, err := h.store.Do(ctx, r)
	switch {
	case errors.Is(err, ErrNotOwned) || errors.Is(err, ErrExpired):
		err = fmt.Errorf("%w: %w", ErrRequestReused, err)
	case err != nil && asked.RequestID == "":
		// It was this host that asked again; the renewal may be carried out yet.
		h.turn(func() { h.core.discard(r, h.core.now+r.TTL(), func(error) {}) })
	}
	return granted{l, sent}, err
}

// renewal names the lease, so that it needs no request ID: done twice, it does
// the same.
func renewal(l Lease, ttl time.Duration) Request {
	return Request{Op: Renew, Tenant: l.Tenant, Key: l.Key, Owner: l.Owner, LeaseID: l.LeaseID, TTLMS: ttl.Milliseconds()}
}

// start begins to renew, or releases a lease that was granted too late.
func (g *Holding) start() error {
	c := &g.host.core
	before := c.held[g.name]
	same := before != nil && before.lease.LeaseID == g.lease.LeaseID
	late := c.now >= g.until
	doomed := c.isDoomed(g.lease)
	switch {
	case c.closed && !same:
		c.discard(renewal(g.lease, g.ttl), g.until, func(error) {})
		return ErrClosed
	case c.closed:
		return ErrClosed // Close releases it
	case doomed != nil:
		return doomed
	case same && before.ending():
		return fmt.Errorf("%w: its lease is being released", ErrRequestReused)
	case same && late:
		return tooLate(g.ttl) // the holding before goes on
	case same:
		before.end()
	}
	c.held[g.name] = g
	if before != nil && !same {
		before.lose(fmt.Errorf("%w: this host has acquired it anew", ErrExpired), func() {})
	}
	if late {
		g.letGo()
		return tooLate(g.ttl)
	}
	g.step()
	return nil
}

// Lease returns the lease as of the last renewal, with its rest as of now.
func (g *Holding) Lease() (l Lease) {
	g.host.turn(func() { l = g.asOfNow() })
	return l
}

// Over reports that the lock is not kept any more: it was released, lost, or is
// kept by another Holding.
func (g *Holding) Over() bool {
	g.host.mu.Lock()
	defer g.host.mu.Unlock()
	return g.over
}

func (g *Holding) asOfNow() Lease { return granted{g.lease, g.sent}.asOf(g.host.core.now) }

func (g *Holding) renewed(got granted) {
	g.lease, g.sent = got.lease, got.sent
	g.until = reliedUntil(got.sent, got.lease.remaining())
	g.failures, g.retryAt = 0, 0
}

// end stops the renewals; the holding is over.
func (g *Holding) end() {
	g.over = true
	g.renewal.hangUp()
	if g.host.core.held[g.name] == g {
		delete(g.host.core.held, g.name)
	}
}

// ending reports whether a release is under way, so that a refused renewal is no
// loss.
func (g *Holding) ending() bool { return g.releasing || g.asked > 0 }

// step begins the due calls, and sets the alarm. It ends every event of the holding, and
// comes at least every watchInterval: an alarm stands still while the machine is suspended,
// and the lease's end does not. A renewal may hang for longer than the lease lives.
func (g *Holding) step() {
	c := &g.host.core
	if g.over || g.releasing {
		return
	}
	// A third of the rest at the last renewal: a longer term counts once it has been asked for
	// here.
	at := max(renewalAt(g.sent, g.lease.remaining()), g.retryAt)
	switch {
	case c.now >= g.until && g.ending(): // the holder itself is releasing the lock
		c.wakeAt(&g.alarm, c.now+retryFirst)
		return
	case c.now >= g.until:
		// The last renewal may have come through all the same: its lease is released.
		r := renewal(g.lease, g.ttl)
		c.doom(r)
		g.lose(fmt.Errorf("%w: no renewal came through in time", ErrExpired), func() { c.discard(r, c.now+r.TTL(), func(error) {}) })
		return
	case g.renewal == nil && c.now >= at:
		g.renew()
	}
	if g.renewal != nil {
		at = g.until
	}
	c.wakeAt(&g.alarm, min(at, g.until, c.now+watchInterval))
}

// renew sends one renewal.
func (g *Holding) renew() {
	c := &g.host.core
	sent, r := c.now, renewal(g.lease, g.ttl)
	g.renewal = c.begin(&call{request: r, ended: func(l Lease, err error) {
		g.renewal = nil
		switch {
		case err == nil:
			g.renewed(granted{l, sent})
			g.judged(r, nil)
		case errors.Is(err, ErrInvalid) && r.TTL() > g.taken: // the lease is as it was
			g.judged(r, err)
		case !definite(err) || !g.lose(err, func() {}):
			g.failures++
			g.retryAt = c.now + backoff(g.failures, retryFirst, min(retryMost, g.ttl/renewPart), c.random())
		}
		g.step()
	}})
}

// definite reports whether an answer to a renewal says that the lock is gone.
func definite(err error) bool {
	var fenced *FencedError
	return IsAnswer(err) && !errors.As(err, &fenced)
}

// lose tells the holder that the lock is gone, unless it is over already, and
// reports whether it does. told is the event after that.
func (g *Holding) lose(why error, told func()) bool {
	if g.over || g.ending() {
		return false
	}
	l := g.asOfNow()
	g.end()
	g.host.core.begin(&call{tell: func() { g.lost(l, why) }, ended: func(Lease, error) { told() }})
	return true
}

// Release releases the lock because the holder is done or gone. It returns when
// the store has answered or ctx is done; the host then goes on trying for as long
// as the lease can last.
//
// Errors: nil also when the holding was over before; ErrNotOwned or ErrExpired
// when the lock had been lost without notice; ctx's, and the store's when it
// could not be reached until the lease's end.
func (g *Holding) Release(ctx context.Context) error {
	var released <-chan error
	g.host.turn(func() { released = g.letGo() })
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

// letGo begins to release, once. A release that the holder asked for by name goes first, so that
// its answer tells its own effect; but a host that is closing does not wait for it.
func (g *Holding) letGo() <-chan error {
	c := &g.host.core
	g.gone = true
	if g.over || g.releasing || g.asked > 0 && !c.closed {
		return nil
	}
	g.releasing = true
	g.renewal.hangUp()
	r := renewal(g.lease, g.ttl)
	result := make(chan error, 1)
	// A renewal that is under way may be carried out yet, and begin a new term.
	c.discard(r, c.now+r.TTL(), func(err error) {
		g.end()
		result <- err
	})
	return result
}

// mayChange prepares for a change that a client asks for by name, and returns the holding
// that it is about, if there is one.
func (c *hostCore) mayChange(r Request) (*Holding, error) {
	g := c.held[name{r.Tenant, r.Key}]
	switch {
	case g == nil || g.lease.Owner != r.Owner || r.LeaseID != "" && r.LeaseID != g.lease.LeaseID:
		return nil, nil
	case r.Op == Release:
		g.asked++
	case r.TTLMS == 0: // for the store's last term
	case r.TTL() < g.ttl:
		return nil, fmt.Errorf("%w: the lock is held for terms of %v, and cannot be renewed for %v", ErrInvalid, g.ttl, r.TTL())
	default:
		g.ttl = r.TTL() // at once, so that no renewal of the host's makes the lease shorter again
	}
	return g, nil
}

// judged is the event that the store has granted the term of a renewal, or refused it. A term
// that was refused is not asked for again: the lease would be lost by it.
func (g *Holding) judged(r Request, err error) {
	switch {
	case err == nil:
		g.taken = max(g.taken, r.TTL())
		g.ttl = max(g.ttl, g.taken)
	case errors.Is(err, ErrInvalid) && r.TTL() == g.ttl:
		g.ttl = g.taken
	}
}

// changed is the event that a change by name has ended.
func (g *Holding) changed(r Request, l Lease, err error) {
	if r.Op == Renew {
		g.judged(r, err)
		return
	}
	g.asked--
	switch {
	case err == nil && l.LeaseID == g.lease.LeaseID:
		g.host.core.released(renewal(g.lease, g.ttl))
		g.end()
	case g.gone:
		g.letGo()
	}
}
