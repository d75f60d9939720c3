package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/lock"
)

// holds are the locks that peers hold by their connections: renewed while the
// connection lives, and released when it ends.
type holds struct {
	mu      sync.Mutex // guards all below, and the fields of each hold
	byLease map[string]*hold
	byConn  map[*conn]map[*hold]struct{} // until the connection ends
	notices sync.WaitGroup               // under way
}

// hold is one of them.
type hold struct {
	lease   lock.Lease // its name; its times are the holding's matter
	holding *lock.Holding
	holder  *conn
	watched bool // the holder wants to be told of the loss
	over    bool
}

// hold acquires a lock that lasts as long as the connection.
func (s *Server) hold(ctx context.Context, c *conn, want lock.Request) (any, error) {
	h := &hold{holder: c}
	if err := c.account.hold(); err != nil {
		return nil, err
	}
	holding, err := s.cfg.Locks.Host.Hold(ctx, want, func(l lock.Lease, why error) { s.lost(h, l, why) })
	if err != nil {
		s.holds.mu.Lock()
		defer s.holds.mu.Unlock()
		s.holds.forget(h)
		return nil, err
	}
	mine := s.attach(c)
	s.holds.mu.Lock()
	defer s.holds.mu.Unlock()
	if h.over {
		return nil, fmt.Errorf("%w: as soon as it was acquired", lock.ErrExpired)
	}
	if holding.Over() { // released found no hold to tell
		s.holds.forget(h)
		return nil, fmt.Errorf("%w: it was released, or acquired again by the same request, as soon as it was acquired", lock.ErrNotOwned)
	}
	h.lease, h.holding = holding.Lease(), holding
	if before := s.holds.byLease[h.lease.LeaseID]; before != nil {
		// The same request came again. The latest connection is the holder.
		h.watched = before.watched && before.holder == c
		s.holds.forget(before)
	}
	s.holds.byLease[h.lease.LeaseID] = h
	mine[h] = struct{}{}
	return h.lease.Answer(), nil
}

// attach returns the connection's holds, which end with it.
func (s *Server) attach(c *conn) map[*hold]struct{} {
	s.holds.mu.Lock()
	mine := s.holds.byConn[c]
	known := mine != nil
	if !known {
		mine = map[*hold]struct{}{}
		s.holds.byConn[c] = mine
	}
	s.holds.mu.Unlock()
	if !known {
		c.attach(func() { s.detach(c) })
	}
	return mine
}

// detach is called at the end of a connection: it releases the connection's locks.
func (s *Server) detach(c *conn) {
	s.holds.mu.Lock()
	mine := s.holds.byConn[c]
	delete(s.holds.byConn, c)
	var leaving []*lock.Holding
	for h := range mine {
		leaving = append(leaving, h.holding)
		s.holds.forget(h)
	}
	s.holds.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Locks.Timeout)
	defer cancel()
	var all sync.WaitGroup
	for _, holding := range leaving {
		all.Go(func() { _ = holding.Release(ctx) }) // the host goes on trying
	}
	all.Wait()
}

// forget takes a hold that is over out of everything. mu is held.
func (t *holds) forget(h *hold) {
	if h.over {
		return
	}
	h.over = true
	h.holder.account.letGo()
	if t.byLease[h.lease.LeaseID] == h {
		delete(t.byLease, h.lease.LeaseID)
	}
	delete(t.byConn[h.holder], h)
}

// count is how many locks are held.
func (t *holds) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byLease)
}

// watch has the connection told when it loses a lock that it holds.
func (s *Server) watch(c *conn, r lock.Request) (lock.Lease, error) {
	s.holds.mu.Lock()
	defer s.holds.mu.Unlock()
	for h := range s.holds.byConn[c] {
		if h.lease.Key == r.Key && (r.LeaseID == "" || r.LeaseID == h.lease.LeaseID) {
			h.watched = true
			return h.holding.Lease(), nil
		}
	}
	return lock.Lease{}, fmt.Errorf("%w: a connection can watch a lock that it holds", lock.ErrNotOwned)
}

// lostLock is the notice of a loss.
type lostLock struct {
	lock.Answer
	Reason string `json:"reason"` // expired, taken_over, refused or released
	Cause  string `json:"cause"`
}

// lost is called once, when the lock is no longer the holder's.
func (s *Server) lost(h *hold, l lock.Lease, why error) {
	reason := "refused"
	switch {
	case errors.Is(why, lock.ErrExpired):
		reason = "expired"
	case errors.Is(why, lock.ErrNotOwned):
		reason = "taken_over"
	}
	s.reportLoss(l, reason, why)
	s.holds.mu.Lock()
	defer s.holds.mu.Unlock()
	s.holds.tellLoss(h, lostLock{l.Answer(), reason, why.Error()})
	s.holds.forget(h)
}

var errReleased = errors.New("another connection of the same user has released it")

// released is after a lock was released by its name, which is a loss to a holder
// that has not done it.
func (s *Server) released(l lock.Lease, by *conn) {
	s.holds.mu.Lock()
	h := s.holds.byLease[l.LeaseID]
	lost := h != nil && h.holder != by
	if lost {
		s.holds.tellLoss(h, lostLock{l.Answer(), "released", errReleased.Error()})
	}
	if h != nil {
		s.holds.forget(h)
	}
	s.holds.mu.Unlock()
	if lost {
		s.reportLoss(l, "released", errReleased)
	}
}

func (s *Server) reportLoss(l lock.Lease, reason string, why error) {
	s.keyedStores.Lost(reason)
	s.log.Warn("lock lost", zap.String("key", l.Key), zap.String("owner", l.Owner),
		zap.Int64("fencing_token", l.Token), zap.String("reason", reason), zap.Error(why))
}

// tellLoss tells the holder, if it watches and the hold is not over: the holder has been told then, or
// its connection has ended. mu is held.
func (t *holds) tellLoss(h *hold, notice lostLock) {
	if h.watched && !h.over {
		// Aside: a peer that does not read keeps no other waiting.
		t.notices.Go(func() { h.holder.notify("Lock.Lost", notice) })
	}
}
