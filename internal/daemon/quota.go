package daemon

import (
	"fmt"
	"sync/atomic"

	"github.com/kazahana/kazahana/internal/operator/quota"
	"github.com/kazahana/kazahana/internal/placement/driver"
	"github.com/kazahana/kazahana/internal/wire"
)

// exceeds is the error of what a quota of one user refuses. Every such refusal is made
// here.
func (b *budget) exceeds(key string, u *user, most int, what, advice string) *wire.Error {
	if key != quota.FixedWatches && key != quota.FixedAnswers {
		advice += ", or raise the quota"
	}
	return overloaded(b.quotas, quota.Refusal{Quota: key, Limit: int64(most), Whose: u.owner.String()},
		"%s: %v has %d %s, as many as one %s may have: %s", key, u.owner, most, what, u.kind(), advice)
}

func (o owner) kind() string {
	if o.from.IsValid() {
		return "address"
	}
	return "UID"
}

// String names the owner.
func (o owner) String() string {
	if o.from.IsValid() {
		return "address " + o.from.Masked().Addr().String()
	}
	return fmt.Sprintf("UID %d", o.uid)
}

// waitingKind is what a request waits for. Each kind has a budget of its own: however
// many wait for locks, those who hold one can renew it.
type waitingKind int

const (
	forAnswer waitingKind = iota // IDs, or an answer of the store
	forLock                      // a lock that somebody else has
	forUpkeep                    // the store, to renew, release or look at a lock: never refused
	waitingKinds
)

// inFlight counts requests that wait.
type inFlight [waitingKinds]atomic.Int64

// Load is how many wait, for whatever it is.
func (n *inFlight) Load() (all int64) {
	for i := range n {
		all += n[i].Load()
	}
	return all
}

// maxUpkeep is how many requests for the upkeep of locks have a goroutine of their own.
// Of further ones, a connection has one at a time, and the next is not read before.
const maxUpkeep = 1024

// leaves reports whether a user may have the n-th of all places, which is its own ofU-th. Once
// three quarters of all places are taken, or as many as the quota of a user if that is more, a user
// may have no more places than stay free. So each user finds half of what those before have left.
func leaves(n, all, ofUser, ofU int64) bool {
	return n <= max(all-all/4, ofUser) || ofU <= max(1, all-n)
}

// leavesTooFew is the error of what leaves forbids. most has most of the places.
func (b *budget) leavesTooFew(key, most string, u *user, ofU, n, all int64, what, advice string) *wire.Error {
	return overloaded(b.quotas, quota.Refusal{Quota: key, Limit: all, Whose: most},
		"%v has %d of %d %s, and the other places are for users with fewer: %s, or raise %s", u.owner, ofU, n, what, advice, key)
}

// countWaiting counts a request that waits, unless there are too many. alone reports that
// its connection is to wait with it.
func (s *Server) countWaiting(u *user, kind waitingKind) (alone bool, err error) {
	limits := s.limits.Load()
	all, key, what := maxUpkeep, "", "waiting"
	switch kind {
	case forAnswer:
		all, key = limits.inFlight()
	case forLock:
		all, key = limits.lockWaiters()
		what = "waiting for locks"
	}
	ofUser := int(ofUser(int64(limits.UserInFlight), int64(all)))
	ofKind := func(u *user) int64 { return u.waiting[kind].Load() }
	n, ofU := s.inFlight[kind].Add(1), u.waiting[kind].Add(1)
	switch {
	case kind == forUpkeep:
		return n > int64(all) || ofU > int64(ofUser), nil
	case n > int64(all):
		s.doneWaiting(u, kind)
		return false, overloaded(s.cfg.Quotas, quota.Refusal{Quota: key, Limit: int64(all), Whose: s.budget.most(ofKind)},
			"%d requests are %s already, and more may not: see %s", all, what, key)
	case ofU > int64(ofUser):
		s.doneWaiting(u, kind)
		return false, s.budget.exceeds(keyUserWaiting, u, ofUser, "requests "+what, "wait for answers")
	case !leaves(n, int64(all), int64(ofUser), ofU):
		s.doneWaiting(u, kind)
		return false, s.budget.leavesTooFew(key, s.budget.most(ofKind), u, ofU-1, n-1, int64(all), "requests that are "+what, "wait for answers")
	}
	return false, nil
}

// doneWaiting counts a request that waits no longer.
func (s *Server) doneWaiting(u *user, kind waitingKind) {
	u.waiting[kind].Add(-1)
	s.inFlight[kind].Add(-1)
}

// hold counts what the connection holds: a lock for as long as it lasts, a watch of one,
// or a stream of events.
func (a *account) hold() error {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	limits := b.limits.Load()
	all, key := limits.holds()
	if most := int(ofUser(int64(limits.UserHolds), int64(all))); a.user.holds >= most {
		return b.exceeds(keyUserHolds, a.user, most, "locks held by connections, and watches", "release some")
	}
	if b.holds >= all {
		most := b.mostOf(func(u *user) int64 { return int64(u.holds) })
		return overloaded(b.quotas, quota.Refusal{Quota: key, Limit: int64(all), Whose: most}, "all users together have %d locks held by connections, and watches, and may have no more: see %s", all, key)
	}
	a.user.holds++
	b.holds++
	return nil
}

// letGo counts what the connection holds no more.
func (a *account) letGo() {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.user.holds--
	a.budget.holds--
}

// holdStream is hold for a stream of events, of which there are few for all users
// together.
func (a *account) holdStream() error {
	if err := a.hold(); err != nil {
		return err
	}
	if err := a.budget.reserve(a.user, a, streamSize, "watches of events", "share one"); err != nil {
		a.letGo()
		return err
	}
	a.budget.mu.Lock()
	most := int(ofUser(0, driver.MaxSubscribers))
	full := a.user.streams >= most
	a.user.streams++
	a.budget.mu.Unlock()
	if full {
		a.letGoStream()
		return a.budget.exceeds(quota.FixedWatches, a.user, most, "watches of events", "share one")
	}
	return nil
}

func (a *account) letGoStream() {
	a.budget.mu.Lock()
	a.user.streams--
	a.budget.mu.Unlock()
	a.budget.release(a.user, streamSize)
	a.letGo()
}
