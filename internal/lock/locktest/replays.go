package locktest

import (
	"context"
	"errors"
	"sync"

	"github.com/kazahana/kazahana/internal/lock"
)

// testNothingTwice sends each request many times at once.
func testNothingTwice(s *suite) {
	const copies = 6
	at := func(r lock.Request) (leases []lock.Lease, errs []error) {
		leases, errs = make([]lock.Lease, copies), make([]error, copies)
		var group sync.WaitGroup
		for i := range copies {
			group.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				leases[i], errs[i] = s.store.Do(ctx, r)
			})
		}
		group.Wait()
		return leases, errs
	}
	once := func(r lock.Request) lock.Lease {
		leases, errs := at(r)
		fresh := 0
		for i, l := range leases {
			s.must(errs[i])
			if !l.Repeated {
				fresh++
			}
			if l.LeaseID != leases[0].LeaseID || l.Token != leases[0].Token || l.ExpiresMS != leases[0].ExpiresMS {
				s.Fatalf("the copies of one %v were answered differently: %+v", r.Op, leases)
			}
		}
		if fresh != 1 {
			s.Errorf("an %v was carried out %d times", r.Op, fresh)
		}
		return leases[0]
	}
	l := once(s.acquire(alice, long))
	once(s.renew(alice, long))
	once(s.release(alice))
	if next := s.do(s.acquire(alice, long)); !s.backend.Jumps && next.Token != l.Token+1 {
		s.Errorf("token %d after %d: a lease was granted in between", next.Token, l.Token)
	}
}

func testRequestReused(s *suite) {
	acquire := s.acquire(alice, long)
	l := s.do(acquire)
	renew := s.renew(alice, long)
	s.do(renew)
	change := func(r lock.Request, how func(*lock.Request)) lock.Request { how(&r); return r }
	for what, r := range map[string]lock.Request{
		"other owner":     change(acquire, func(r *lock.Request) { r.Owner = bob }),
		"other term":      change(acquire, func(r *lock.Request) { r.TTLMS++ }),
		"other operation": change(acquire, func(r *lock.Request) { r.Op = lock.Renew; r.LeaseID = "" }),
		"renewal's term":  change(renew, func(r *lock.Request) { r.TTLMS++ }),
		"renewal's owner": change(renew, func(r *lock.Request) { r.Owner = bob }),
		"renewal's lease": change(renew, func(r *lock.Request) { r.LeaseID = s.next() }),
		"release":         change(renew, func(r *lock.Request) { r.Op = lock.Release; r.TTLMS = 0 }),
	} {
		if _, err := s.try(r); !errors.Is(err, lock.ErrRequestReused) {
			s.Errorf("%s: error is %v, want ErrRequestReused", what, err)
		}
	}
	if got := s.get(); got.LeaseID != l.LeaseID || got.State != lock.Active {
		s.Errorf("a reused request ID did something: %+v", got)
	}
	// The scope of a request ID is its key.
	elsewhere := change(acquire, func(r *lock.Request) { r.Key = "another" })
	if got := s.do(elsewhere); got.Repeated {
		s.Errorf("a request ID of another key counted: %+v", got)
	}
}

// testReceiptsAreBounded checks that what is forgotten is refused by the state
// that the key is in, and carried out by no means a second time.
func testReceiptsAreBounded(s *suite) {
	l := s.do(s.acquire(alice, long))
	old := s.renew(alice, long)
	old.LeaseID = l.LeaseID
	s.do(old)
	for range lock.MaxReceipts - 1 {
		s.do(s.renew(alice, long))
	}
	if got := s.do(old); !got.Repeated {
		s.Errorf("the receipt of %d requests ago is gone", lock.MaxReceipts-1)
	}
	s.do(s.release(alice))
	s.do(s.acquire(alice, long))
	_, err := s.try(old)
	s.want(err, lock.ErrNotOwned)
}

func testRefusalsAreNotKept(s *suite) {
	s.do(s.acquire(alice, long))
	wait := s.acquire(bob, long)
	_, err := s.try(wait)
	s.wantHeld(err)
	early := s.renew(bob, long)
	_, err = s.try(early)
	s.want(err, lock.ErrNotOwned)
	s.do(s.release(alice))
	if got := s.do(wait); got.Repeated || got.Owner != bob {
		s.Errorf("asked again, it answers %+v", got)
	}
	s.do(early)
}
