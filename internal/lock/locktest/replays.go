package locktest

import (
	"errors"

	"github.com/kazahana/kazahana/internal/lock"
)

// between is how many requests of others may come before a repetition that gets its answer.
const between = lock.MaxReceipts - 1

// testReplays has another process send requests again that were carried out before, as a network
// does that delivers late, or a program whose answer was lost. None is carried out twice, with
// as many requests of others in between as are remembered (LS-ACQ-004, LS-RNW-003, LS-REL-003,
// LS-ACC-04). Older ones are judged like new ones.
func testReplays(s *suite) {
	first, other := s.store, s.open()
	for _, others := range []int{0, 1, between} {
		s.store = first
		s.replayLiving(others, other)
		s.store = first
		s.replayEnded(others-min(others, 2), other) // two of its own came after its acquire
	}
	s.store = first
	s.replayOlder(other)
}

// replayLiving sends an acquire and a renewal again while the lease lives: others have renewed
// it so often.
func (s *suite) replayLiving(others int, other lock.Store) {
	s.Helper()
	acquire, renew := s.request(lock.Acquire, alice, long), s.request(lock.Renew, alice, long/2)
	s.do(acquire, lock.Active, false)
	renew.LeaseID = s.do(renew, lock.Active, false).LeaseID
	for range others {
		s.do(s.request(lock.Renew, alice, long), lock.Active, false)
	}
	want, err := s.store.Get(s.context(), tenant, key)
	s.must(err)
	s.store = other
	acquire.LeaseID = s.next()
	for _, r := range []lock.Request{acquire, renew} {
		l, err := s.store.Do(s.context(), r)
		if err != nil || !l.Repeated || l.LeaseID != want.LeaseID || l.State != lock.Active {
			s.Fatalf("after %d others, %+v answers %+v, %v", others, r, l, err)
		}
		s.shown(want)
	}
	s.do(s.request(lock.Release, alice, 0), lock.Released, false)
}

// replayEnded sends the requests of a lease again that has ended since. Others have made so
// many requests.
func (s *suite) replayEnded(others int, other lock.Store) {
	s.Helper()
	old := s.oldLease()
	want := old.released
	for n := range others {
		r := s.request([]lock.Op{lock.Acquire, lock.Renew, lock.Renew, lock.Release}[n%4], []string{alice, bob}[n/4%2], long)
		state := lock.Active
		if r.Op == lock.Release {
			r.TTLMS, state = 0, lock.Released
		}
		want = s.do(r, state, false)
	}
	s.store = other
	s.refused(old.renew, lock.ErrNotOwned)
	if l := s.do(old.release, lock.Released, true); l != old.released {
		s.Fatalf("after %d others, the release answers %+v; it was %+v", others, l, old.released)
	}
	s.refused(old.acquire, lock.ErrRequestReused)
	s.shown(want)
	if want.State == lock.Active {
		s.do(s.request(lock.Release, want.Owner, 0), lock.Released, false)
	}
}

// replayOlder sends requests again that are not remembered any more.
func (s *suite) replayOlder(other lock.Store) {
	s.Helper()
	old := s.oldLease()
	for range lock.MaxReceipts + 1 {
		s.do(s.request(lock.Acquire, bob, long), lock.Active, false)
		s.do(s.request(lock.Release, bob, 0), lock.Released, false)
	}
	held := s.do(s.request(lock.Acquire, alice, long), lock.Active, false)
	s.store = other
	s.refused(old.renew, lock.ErrNotOwned)
	s.refused(old.release, lock.ErrNotOwned)
	if _, err := s.store.Do(s.context(), old.acquire); !errors.As(err, new(*lock.HeldError)) {
		s.Fatalf("the acquire answers %v", err)
	}
	s.shown(held)
	s.do(s.request(lock.Release, alice, 0), lock.Released, false)
	if l := s.do(old.acquire, lock.Active, false); l.Token <= held.Token {
		s.Fatalf("the acquire was granted %+v after %+v", l, held)
	}
	s.do(s.request(lock.Release, alice, 0), lock.Released, false)
}

// oldLease is the requests of a lease that was released. They name the lease.
type oldLease struct {
	acquire, renew, release lock.Request
	released                lock.Lease // the answer to a repeated release
}

func (s *suite) oldLease() oldLease {
	s.Helper()
	old := oldLease{acquire: s.request(lock.Acquire, alice, long), renew: s.request(lock.Renew, alice, long), release: s.request(lock.Release, alice, 0)}
	id := s.do(old.acquire, lock.Active, false).LeaseID
	old.renew.LeaseID, old.release.LeaseID = id, id
	s.do(old.renew, lock.Active, false)
	old.released = s.do(old.release, lock.Released, false)
	old.released.Repeated = true
	return old
}
