package locktest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/record/receipt"
)

// testReplays sends requests again that were carried out long ago, as a network does that
// delivers late. Each gets its first answer, or hears that its lease has ended, and none is
// carried out twice.
func testReplays(s *suite) {
	for _, further := range []int{0, 20, 200} { // TestAnswersAreKeptForTheirTime has more
		s.replay(further)
		s.replayRenewal(further)
	}
	s.untimedReplays()
}

// timed is a request whose ID tells when it was made.
func (s *suite) timed(op lock.Op, owner string, ttl int64) lock.Request {
	r := s.request(op, owner, ttl)
	r.RequestID = lock.NewLeaseID()
	return r
}

// replay carries out the requests of two leases, and sends them again after so many
// others, while another lease of the same owner is alive.
func (s *suite) replay(further int) {
	s.Helper()
	type asked struct {
		request lock.Request
		answer  lock.Lease
	}
	var old []asked
	for range 2 {
		acquire := s.timed(lock.Acquire, alice, long)
		l := s.do(acquire, lock.Active, false)
		nameless, renew := s.timed(lock.Renew, alice, long), s.timed(lock.Renew, alice, long)
		renew.LeaseID = l.LeaseID
		s.do(nameless, lock.Active, false)
		s.do(renew, lock.Active, false)
		release := s.timed(lock.Release, alice, 0) // of whatever lease is alive when it comes
		l = s.do(release, lock.Released, false)
		old = append(old, asked{acquire, l}, asked{nameless, l}, asked{renew, l}, asked{release, l})
	}
	for n := 0; n < further; n += 4 {
		owner := []string{alice, bob, "carol"}[n/4%3]
		s.do(s.timed(lock.Acquire, owner, long), lock.Active, false)
		s.do(s.timed(lock.Renew, owner, long), lock.Active, false)
		s.do(s.timed(lock.Renew, owner, long), lock.Active, false)
		s.do(s.timed(lock.Release, owner, 0), lock.Released, false)
	}
	for _, alive := range []bool{false, true} {
		want, err := s.store.Get(s.context(), tenant, key)
		s.must(err)
		if alive {
			want = s.do(s.timed(lock.Acquire, alice, long), lock.Active, false)
		}
		for _, o := range old {
			l, err := s.store.Do(s.context(), o.request)
			right := false
			switch o.request.Op {
			case lock.Acquire:
				right = errors.Is(err, lock.ErrRequestReused)
			case lock.Renew:
				right = errors.Is(err, lock.ErrNotOwned)
			case lock.Release:
				o.answer.Repeated = true
				right = err == nil && l == o.answer
			}
			if !right {
				s.Fatalf("after %d others, %+v answers %+v, %v; it was %+v", further, o.request, l, err, o.answer)
			}
			s.shown(want)
		}
	}
	s.do(s.timed(lock.Release, alice, 0), lock.Released, false)
}

// replayRenewal renews one lease often, and repeats the first request of it: each repetition
// shows the lease as it is, and does not move its end.
func (s *suite) replayRenewal(further int) {
	s.Helper()
	acquire, renew := s.timed(lock.Acquire, alice, long), s.timed(lock.Renew, alice, long/2)
	s.do(acquire, lock.Active, false)
	s.do(renew, lock.Active, false)
	for range further {
		s.do(s.timed(lock.Renew, alice, long), lock.Active, false)
	}
	want, err := s.store.Get(s.context(), tenant, key)
	s.must(err)
	for _, r := range []lock.Request{acquire, renew} {
		l, err := s.store.Do(s.context(), r)
		if err != nil || !l.Repeated || l.LeaseID != want.LeaseID || l.State != lock.Active {
			s.Fatalf("after %d renewals, %+v answers %+v, %v", further, r, l, err)
		}
		s.shown(want)
	}
	s.do(s.timed(lock.Release, alice, 0), lock.Released, false)
}

// untimedReplays fills the key with receipts that are kept because their request IDs tell
// no time. A further request is refused, and none of those before is forgotten.
func (s *suite) untimedReplays() {
	s.Helper()
	const other = "orders/43"
	about := func(op lock.Op, ttl int64) lock.Request {
		r := s.request(op, alice, ttl)
		r.Key = other
		return r
	}
	l := s.do(about(lock.Acquire, long), lock.Active, false)
	renew := about(lock.Renew, long)
	s.do(renew, lock.Active, false)
	for range receipt.MaxUntimed - 1 {
		s.do(about(lock.Renew, long), lock.Active, false)
	}
	s.do(renew, lock.Active, true)
	_, err := s.store.Do(s.context(), about(lock.Release, 0))
	if !errors.Is(err, lock.ErrInvalid) || !strings.Contains(fmt.Sprint(err), "version 7") {
		s.Fatalf("with %d receipts, a release answers %v", receipt.MaxUntimed, err)
	}
	release := about(lock.Release, 0)
	release.LeaseID = l.LeaseID // it ends once, whatever is remembered
	s.do(release, lock.Released, false)
	timed := about(lock.Acquire, long)
	timed.RequestID = lock.NewLeaseID()
	s.do(timed, lock.Active, false)
	s.do(timed, lock.Active, true)
}
