package locktest

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/kazahana/kazahana/internal/lock"
)

// testReplays sends requests again that were carried out long ago, as a network does that
// delivers late. None is carried out twice.
func testReplays(s *suite) {
	for _, further := range []int{0, 20, 200, 20_000} {
		if further > cmp.Or(s.backend.Replays, 200) {
			break
		}
		s.replay(further, lock.NewLeaseID)
	}
	s.untimedReplays()
}

// replay carries out the requests of two leases, and sends them again after so many
// others, while another lease of the same owner is alive.
func (s *suite) replay(further int, id func() string) {
	s.Helper()
	with := func(r lock.Request) lock.Request {
		r.RequestID = id()
		return r
	}
	var old []lock.Request
	for range 2 {
		acquire := with(s.request(lock.Acquire, alice, long))
		l := s.do(acquire, lock.Active, false)
		nameless, renew := with(s.request(lock.Renew, alice, long)), with(s.request(lock.Renew, alice, long))
		renew.LeaseID = l.LeaseID
		s.do(nameless, lock.Active, false)
		s.do(renew, lock.Active, false)
		release := with(s.request(lock.Release, alice, 0)) // of whatever lease is alive when it comes
		s.do(release, lock.Released, false)
		old = append(old, acquire, nameless, renew, release)
	}
	for n := 0; n < further; n += 4 {
		owner := []string{alice, bob, "carol"}[n/4%3]
		s.do(with(s.request(lock.Acquire, owner, long)), lock.Active, false)
		s.do(with(s.request(lock.Renew, owner, long)), lock.Active, false)
		s.do(with(s.request(lock.Renew, owner, long)), lock.Active, false)
		s.do(with(s.request(lock.Release, owner, 0)), lock.Released, false)
	}
	for _, alive := range []bool{false, true} {
		want, err := s.store.Get(s.context(), tenant, key)
		s.must(err)
		if alive {
			want = s.do(with(s.request(lock.Acquire, alice, long)), lock.Active, false)
		}
		for _, r := range old {
			l, err := s.store.Do(s.context(), r)
			if (err == nil) != l.Repeated || r.Op == lock.Acquire && err == nil || err != nil && !lock.IsAnswer(err) {
				s.Fatalf("after %d others, %v answers %+v, %v", further, r, l, err)
			}
			s.shown(want)
		}
	}
	s.do(with(s.request(lock.Release, alice, 0)), lock.Released, false)
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
	for range lock.MaxUntimed - 1 {
		s.do(about(lock.Renew, long), lock.Active, false)
	}
	s.do(renew, lock.Active, true)
	_, err := s.store.Do(s.context(), about(lock.Release, 0))
	if !errors.Is(err, lock.ErrInvalid) || !strings.Contains(fmt.Sprint(err), "version 7") {
		s.Fatalf("with %d receipts, a release answers %v", lock.MaxUntimed, err)
	}
	release := about(lock.Release, 0)
	release.LeaseID = l.LeaseID // it ends once, whatever is remembered
	s.do(release, lock.Released, false)
	timed := about(lock.Acquire, long)
	timed.RequestID = lock.NewLeaseID()
	s.do(timed, lock.Active, false)
	s.do(timed, lock.Active, true)
}
