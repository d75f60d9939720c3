package locktest

import (
	"context"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

func testOneActive(s *suite) {
	first := s.do(s.acquire(alice, long))
	for _, owner := range []string{alice, bob} {
		_, err := s.try(s.acquire(owner, long))
		s.wantHeld(err)
	}
	if got := s.get(); got.LeaseID != first.LeaseID || got.State != lock.Active {
		s.Errorf("the lock is %+v, want the first lease", got)
	}
	s.do(s.release(alice))
	second := s.do(s.acquire(bob, long))
	page, err := s.store.List(context.Background(), tenant, "", lock.MaxList)
	s.must(err)
	if len(page) != 1 || page[0].LeaseID != second.LeaseID {
		s.Errorf("listed are %+v, want the second lease alone", page)
	}
}

func testTokensIncrease(s *suite) {
	var last int64
	for i := range 6 {
		l := s.do(s.acquire(alice, s.short()))
		if l.Token <= last {
			s.Fatalf("token %d after %d", l.Token, last)
		}
		last = l.Token
		if i%2 == 0 {
			s.reachEnd()
		} else if _, err := s.try(s.release(alice)); err != nil {
			s.want(err, lock.ErrExpired) // the machine is slow
		}
	}
}

// tokenAfter checks that a lease that is acquired after the key went through
// something has a greater token than the one before.
func (s *suite) tokenAfter(through func()) {
	s.Helper()
	s.do(s.acquire(alice, long))
	s.do(s.release(alice))
	s.do(s.acquire(alice, long))
	before := s.do(s.release(alice))
	through()
	after := s.do(s.acquire(bob, long))
	if after.Token <= before.Token {
		s.Errorf("token %d after %d", after.Token, before.Token)
	}
	if !s.backend.Jumps && after.Token != before.Token+1 {
		s.Errorf("token %d after %d, want the next", after.Token, before.Token)
	}
}

func testTokensOverRestart(s *suite) {
	if s.backend.Restart == nil {
		s.Skip("the backend promises nothing over a restart")
	}
	s.tokenAfter(func() { s.reopen(s.backend.Restart) })
}

func testTokensOverIdleKeys(s *suite) {
	if s.backend.Sweep == nil {
		s.Skip("the store deletes no keys")
	}
	s.tokenAfter(func() {
		// Those with smaller tokens, deleted before and after it, do not lower the
		// floor.
		for _, other := range []string{"!", "~"} {
			acquire, release := s.acquire(alice, long), s.release(alice)
			acquire.Key, release.Key = other, other
			s.do(acquire)
			s.do(release)
		}
		if s.backend.Advance != nil {
			s.backend.Advance(lock.KeepIdle + time.Duration(long)*time.Millisecond)
		}
		s.must(s.backend.Sweep())
		for _, k := range []string{"!", key, "~"} {
			_, err := s.store.Get(context.Background(), tenant, k)
			s.want(err, lock.ErrNotFound)
		}
	})
}

func testTokensOverForgetting(s *suite) {
	if s.backend.Forget == nil {
		s.Skip("the backend does not forget")
	}
	s.do(s.acquire(alice, long))
	before := s.do(s.release(alice))
	s.reopen(s.backend.Forget)
	_, err := s.store.Get(context.Background(), tenant, key)
	s.want(err, lock.ErrNotFound)
	if after := s.do(s.acquire(alice, long)); after.Token <= before.Token {
		s.Errorf("token %d after %d was forgotten", after.Token, before.Token)
	}
}

func testChangeNeedsOwner(s *suite) {
	for _, change := range []func(owner string) lock.Request{func(o string) lock.Request { return s.renew(o, long) }, s.release} {
		_, err := s.try(change(alice))
		s.want(err, lock.ErrNotOwned) // nobody ever held it, or it was released

		l := s.do(s.acquire(alice, long))
		_, err = s.try(change(bob))
		s.want(err, lock.ErrNotOwned)

		other := change(alice)
		other.LeaseID = s.next()
		_, err = s.try(other)
		s.want(err, lock.ErrNotOwned)
		if got := s.get(); got.State != lock.Active || got.ExpiresMS != l.ExpiresMS {
			s.Fatalf("a refused request changed the lease to %+v", got)
		}

		named := change(alice)
		named.LeaseID = l.LeaseID
		if got := s.do(named); got.LeaseID != l.LeaseID || got.Token != l.Token || got.Owner != alice {
			s.Errorf("%v answers %+v, want the lease %+v", named.Op, got, l)
		}
		if named.Op == lock.Renew {
			s.do(s.release(alice))
		}
		_, err = s.try(change(alice))
		s.want(err, lock.ErrNotOwned) // released
	}
}

func testChangeAfterEnd(s *suite) {
	l := s.expired(alice)
	for range 2 {
		_, err := s.try(s.renew(alice, long))
		s.want(err, lock.ErrExpired)
		_, err = s.try(s.release(alice))
		s.want(err, lock.ErrExpired)
		_, err = s.try(s.release(bob))
		s.want(err, lock.ErrNotOwned)
	}
	if got := s.get(); got.State != lock.Expired || got.LeaseID != l.LeaseID || got.RemainingMS != 0 {
		s.Errorf("the lock is %+v, want it expired", got)
	}
	// The next lease is no business of the first owner's.
	s.do(s.acquire(bob, long))
	_, err := s.try(s.renew(alice, long))
	s.want(err, lock.ErrNotOwned)
}

func testAcquireHeld(s *suite) {
	request := s.acquire(alice, long)
	l := s.do(request)
	for _, owner := range []string{bob, alice} {
		_, err := s.try(s.acquire(owner, s.short()))
		held := s.wantHeld(err)
		if held.Owner != alice || held.Token != l.Token || held.ExpiresMS != l.ExpiresMS || held.Key != key || held.RequestID != request.RequestID {
			s.Errorf("told is %+v of %+v", held, l)
		}
		if held.RemainingMS < 1 || held.RemainingMS > long {
			s.Errorf("the lease is told to live for another %d ms", held.RemainingMS)
		}
	}
}

func testAcquireFree(s *suite) {
	request := s.acquire(alice, long)
	l := s.do(request)
	want := lock.Lease{
		Tenant: tenant, Key: key, LeaseID: request.LeaseID, Owner: alice, Token: l.Token, State: lock.Active,
		AcquiredMS: l.AcquiredMS, ExpiresMS: l.AcquiredMS + long, RemainingMS: long,
	}
	if l != want || l.Token < 1 {
		s.Errorf("the lease is %+v, want %+v", l, want)
	}
	s.do(s.release(alice))
	s.expired(bob)
	s.do(s.acquire(alice, long))
}

func testTokenIsNext(s *suite) {
	a := s.do(s.acquire(alice, long))
	s.do(s.renew(alice, long))
	if got := s.get().Token; got != a.Token {
		s.Errorf("a renewal changed token %d to %d", a.Token, got)
	}
	s.do(s.release(alice))
	b := s.expired(bob)
	c := s.do(s.acquire(alice, long))
	if b.Token != a.Token+1 || c.Token != b.Token+1 {
		s.Errorf("tokens are %d, %d, %d, want each to be the next", a.Token, b.Token, c.Token)
	}
}

func testAcquireAgain(s *suite) {
	request := s.acquire(alice, long)
	first := s.do(request)
	request.LeaseID = s.next() // a sender that does not know that it repeats itself
	for range 2 {
		again := s.do(request)
		if !again.Repeated || again.LeaseID != first.LeaseID || again.Token != first.Token || again.ExpiresMS != first.ExpiresMS {
			s.Errorf("repeated, it answers %+v, want %+v", again, first)
		}
	}
	renewed := s.do(s.renew(alice, long/2))
	if again := s.do(request); again.ExpiresMS != renewed.ExpiresMS || again.LeaseID != first.LeaseID || again.RemainingMS > long/2 {
		s.Errorf("after a renewal it answers %+v, want the end to be %d", again, renewed.ExpiresMS)
	}
	s.do(s.renew(alice, s.short()))
	s.reachEnd()
	_, err := s.try(request)
	s.want(err, lock.ErrRequestReused)

	released := s.acquire(bob, long)
	s.do(released)
	s.do(s.release(bob))
	for range 2 { // before and after somebody else has it
		_, err = s.try(released)
		s.want(err, lock.ErrRequestReused)
		if s.get().Owner == bob {
			s.do(s.acquire(alice, long))
		}
	}
}

func testRenewCountsFromNow(s *suite) {
	l := s.do(s.acquire(alice, long))
	for _, ttl := range []int64{2 * long, long / 2, long} {
		if s.backend.Advance != nil {
			s.backend.Advance(lock.MinTTL)
		}
		before := s.get()
		got := s.do(s.renew(alice, ttl))
		now := before.ExpiresMS - before.RemainingMS // when Get answered
		if got.RemainingMS != ttl || got.ExpiresMS < now+ttl || got.AcquiredMS != l.AcquiredMS || got.State != lock.Active {
			s.Errorf("renewed for %d ms at %d or later, the lease is %+v", ttl, now, got)
		}
		if s.backend.Advance != nil && got.ExpiresMS != now+ttl {
			s.Errorf("renewed at %d for %d ms, the lease ends at %d", now, ttl, got.ExpiresMS)
		}
		if after := s.get(); after.ExpiresMS != got.ExpiresMS {
			s.Errorf("the lease ends at %d, the answer was %d", after.ExpiresMS, got.ExpiresMS)
		}
	}
}

func testRenewAgain(s *suite) {
	s.do(s.acquire(alice, long))
	request := s.renew(alice, long)
	first := s.do(request)
	if s.backend.Advance != nil {
		s.backend.Advance(lock.MinTTL)
	}
	if again := s.do(request); !again.Repeated || again.ExpiresMS != first.ExpiresMS || again.LeaseID != first.LeaseID {
		s.Errorf("repeated, it answers %+v, want %+v", again, first)
	}
	if got := s.get(); got.ExpiresMS != first.ExpiresMS {
		s.Errorf("repeated, it moved the end from %d to %d", first.ExpiresMS, got.ExpiresMS)
	}
	s.do(s.renew(alice, s.short()))
	s.reachEnd()
	_, err := s.try(request)
	s.want(err, lock.ErrExpired) // LS-INV-004 goes before: nobody may think that he holds it
	s.do(s.acquire(alice, long))
	_, err = s.try(request)
	s.want(err, lock.ErrNotOwned)
}

func testReleaseOwn(s *suite) {
	testChangeNeedsOwner(s)
	l := s.do(s.acquire(alice, long))
	got := s.do(s.release(alice))
	if got.State != lock.Released || got.RemainingMS != 0 || got.LeaseID != l.LeaseID || got.Repeated {
		s.Errorf("released, the lease is %+v", got)
	}
	s.expired(alice)
	_, err := s.try(s.release(alice))
	s.want(err, lock.ErrExpired)
}

func testReleaseFrees(s *suite) {
	l := s.do(s.acquire(alice, long))
	s.do(s.release(alice))
	if got := s.get(); got.State != lock.Released || got.LeaseID != l.LeaseID {
		s.Errorf("the lock is %+v, want it released", got)
	}
	page, err := s.store.List(context.Background(), tenant, "", lock.MaxList)
	s.must(err)
	if len(page) != 0 {
		s.Errorf("listed is %+v, want nothing", page)
	}
	s.do(s.acquire(bob, long))
}

func testReleaseAgain(s *suite) {
	s.do(s.acquire(alice, long))
	request := s.release(alice)
	first := s.do(request)
	check := func() {
		again := s.do(request)
		first.Repeated = true
		if again != first {
			s.Errorf("repeated, it answers %+v, want %+v", again, first)
		}
	}
	check()
	next := s.do(s.acquire(alice, long)) // the same owner: only the receipt protects it
	check()
	if got := s.get(); got.LeaseID != next.LeaseID || got.State != lock.Active {
		s.Errorf("the repeated release did %+v to the next lease", got)
	}
}

// testConcurrentAcquire has many ask for one free lock at once.
func testConcurrentAcquire(s *suite) {
	const callers, rounds = 8, 5
	stores := []lock.Store{s.store, s.open()}
	for range rounds {
		requests := make([]lock.Request, callers)
		errs := make([]error, callers)
		for i := range requests {
			requests[i] = s.acquire([]string{alice, bob}[i%2], long)
		}
		var group sync.WaitGroup
		for i, r := range requests {
			group.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				_, errs[i] = stores[i%len(stores)].Do(ctx, r)
			})
		}
		group.Wait()
		winner := -1
		for i, err := range errs {
			switch {
			case err != nil:
				s.wantHeld(err)
			case winner >= 0:
				s.Fatalf("two acquired the lock at once")
			default:
				winner = i
			}
		}
		if winner < 0 {
			s.Fatalf("nobody acquired a free lock")
		}
		s.do(s.release(requests[winner].Owner))
	}
}

func testExpiryIsIdempotent(s *suite) {
	l := s.expired(alice)
	for range 3 {
		got := s.get()
		if got.State != lock.Expired || got.LeaseID != l.LeaseID || got.Token != l.Token || got.ExpiresMS != l.ExpiresMS {
			s.Errorf("the lock is %+v, want %+v, expired", got, l)
		}
		_, err := s.try(s.renew(alice, long))
		s.want(err, lock.ErrExpired)
		page, err := s.store.List(context.Background(), tenant, "", lock.MaxList)
		s.must(err)
		if len(page) != 0 {
			s.Errorf("listed is %+v, want nothing", page)
		}
	}
	if next := s.do(s.acquire(bob, long)); next.Token != l.Token+1 {
		s.Errorf("token %d after %d: expiry must not use any", next.Token, l.Token)
	}
}

// testTokenTellsOldFromNew writes to a resource that keeps the greatest token it
// saw: after the next holder's write, the one before cannot write any more.
func testTokenTellsOldFromNew(s *suite) {
	var seen int64
	write := func(token int64) bool {
		if token < seen {
			return false
		}
		seen = token
		return true
	}
	old := s.do(s.acquire(alice, s.short()))
	for range 2 {
		if !write(old.Token) {
			s.Fatalf("the holder cannot write")
		}
	}
	s.reachEnd()
	if fresh := s.do(s.acquire(bob, long)); !write(fresh.Token) {
		s.Fatalf("the next holder cannot write")
	}
	if write(old.Token) {
		s.Errorf("the holder whose lease has ended can write")
	}
}
