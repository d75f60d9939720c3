// Package locktest holds every lock store to one behaviour. The rules of a lock are the
// same code for all stores, and package lock tests them once; package recordtest shows the
// promises of the records below. Run shows that every operation passes through a store,
// that it judges the end of a term, that it keeps its answers, and that histories of
// concurrent clients are possible for a lock. A History judges any other history.
package locktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

// Backend is where stores keep their locks. It is empty when a Factory returns it, and
// shared by all stores that are opened on it, like a server that several hosts use.
type Backend struct {
	// Open returns a client of the backend. The suite closes it if it is an io.Closer.
	Open func() (lock.Store, error)

	// Restart stops the backend, in the hardest way that it promises to survive,
	// and starts it again. nil for a backend that promises nothing. The suite opens new
	// clients afterwards.
	Restart func() error

	// MinTTL is the shortest term that the backend keeps, when that is more than
	// lock.MinTTL.
	MinTTL time.Duration

	Jumps   bool // as in Allowed
	NoClock bool // likewise
}

// Factory makes an empty backend.
type Factory func(t *testing.T) Backend

// Run runs the whole suite.
func Run(t *testing.T, factory Factory) {
	for name, test := range map[string]func(*suite){
		"Operations": testOperations, "Terms": testTerms, "Keys": testKeys, "Restart": testRestart, "Histories": testHistories,
	} {
		t.Run(name, func(t *testing.T) {
			s := &suite{T: t, backend: factory(t)}
			t.Cleanup(s.closeClients)
			s.store = s.open()
			test(s)
		})
	}
}

const (
	tenant = "default"
	key    = "orders/42"
	alice  = "alice"
	bob    = "bob"
	long   = int64(time.Hour / time.Millisecond) // a term that does not end by itself
)

// patience is for one operation: long enough for a slow machine.
const patience = time.Minute

// suite is one test on one backend.
type suite struct {
	*testing.T
	backend Backend
	clients []lock.Store
	store   lock.Store // the client in use
	serial  int        // of lease and request IDs
}

// open returns one more client.
func (s *suite) open() lock.Store {
	s.Helper()
	store, err := s.backend.Open()
	s.must(err)
	s.clients = append(s.clients, store)
	return store
}

func (s *suite) closeClients() {
	s.Helper()
	for _, c := range s.clients {
		if closer, ok := c.(io.Closer); ok {
			s.must(closer.Close())
		}
	}
	s.clients = nil
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// next returns a request or lease ID that was not used before.
func (s *suite) next() string {
	s.serial++
	return fmt.Sprintf("%032x", s.serial)
}

// request is about the suite's key.
func (s *suite) request(op lock.Op, owner string, ttl int64) lock.Request {
	r := lock.Request{Op: op, Tenant: tenant, Key: key, Owner: owner, RequestID: s.next(), TTLMS: ttl}
	if op == lock.Acquire {
		r.LeaseID = s.next()
	}
	return r
}

func (s *suite) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	s.Cleanup(cancel)
	return ctx
}

// do carries out a request that must succeed, and checks the answer.
func (s *suite) do(r lock.Request, state lock.Status, repeated bool) lock.Lease {
	s.Helper()
	l, err := s.store.Do(s.context(), r)
	if err != nil {
		s.Fatalf("%v of %q by %q: %v", r.Op, r.Key, r.Owner, err)
	}
	if l.State != state || l.Repeated != repeated || l.Owner != r.Owner || l.Key != r.Key || l.Tenant != r.Tenant || l.RemainingMS > r.TTLMS {
		s.Fatalf("%+v answers %+v, want it %s, repeated %v", r, l, state, repeated)
	}
	return l
}

// refused expects an error, and that it is an answer.
func (s *suite) refused(r lock.Request, want error) {
	s.Helper()
	if l, err := s.store.Do(s.context(), r); !errors.Is(err, want) {
		s.Fatalf("%v by %q answers %+v, %v, want %v", r.Op, r.Owner, l, err, want)
	}
}

// heldBy expects that the lease stands in the way.
func (s *suite) heldBy(l lock.Lease) {
	s.Helper()
	_, err := s.store.Do(s.context(), s.request(lock.Acquire, bob, long))
	var held *lock.HeldError
	if !errors.As(err, &held) || held.Owner != l.Owner || held.Token != l.Token || held.ExpiresMS != l.ExpiresMS || held.RemainingMS < 1 ||
		held.RemainingMS > l.ExpiresMS-l.AcquiredMS {
		s.Fatalf("the error is %+v, want one about %+v", err, l)
	}
}

// shown compares Get and List with the lease.
func (s *suite) shown(want lock.Lease) {
	s.Helper()
	got, err := s.store.Get(s.context(), want.Tenant, want.Key)
	s.must(err)
	page, err := s.store.List(s.context(), want.Tenant, "", lock.MaxList)
	s.must(err)
	if want.State == lock.Active && (len(page) != 1 || page[0].LeaseID != want.LeaseID || page[0].ExpiresMS != want.ExpiresMS) ||
		want.State != lock.Active && len(page) != 0 {
		s.Errorf("listed are %+v, want %+v if it is held", page, want)
	}
	got.RemainingMS, want.RemainingMS, want.Repeated = 0, 0, false
	if got != want {
		s.Errorf("Get answers %+v, want %+v", got, want)
	}
}

// testOperations is every operation once, and again with the same request ID.
func testOperations(s *suite) {
	if l, err := s.store.Get(s.context(), tenant, key); !errors.Is(err, lock.ErrNotFound) {
		s.Errorf("Get of what was never held: %+v, %v", l, err)
	}
	acquire := s.request(lock.Acquire, alice, long)
	l := s.do(acquire, lock.Active, false)
	acquire.LeaseID = s.next() // a sender that does not know that it repeats itself
	s.do(acquire, lock.Active, true)
	s.shown(l)
	s.heldBy(l)
	s.store = s.open()
	renew := s.request(lock.Renew, alice, 2*long)
	renewed := s.do(renew, lock.Active, false)
	s.do(renew, lock.Active, true)
	if renewed.Token != l.Token || renewed.LeaseID != l.LeaseID || renewed.AcquiredMS != l.AcquiredMS || renewed.ExpiresMS <= l.ExpiresMS {
		s.Errorf("renewed, %+v is %+v", l, renewed)
	}
	s.shown(renewed)
	same := s.request(lock.Renew, alice, 0)
	l, err := s.store.Do(s.context(), same)
	if err != nil || l.ExpiresMS < renewed.ExpiresMS || l.RemainingMS <= long || l.RemainingMS > 2*long {
		s.Errorf("renewed without a term, %+v is %+v, %v", renewed, l, err)
	}
	if again, err := s.store.Do(s.context(), same); err != nil || !again.Repeated || again.ExpiresMS != l.ExpiresMS {
		s.Errorf("the same request answers %+v, %v", again, err)
	}
	s.shown(l)
	s.refused(s.request(lock.Release, bob, 0), lock.ErrNotOwned)
	reused := acquire
	reused.TTLMS++
	s.refused(reused, lock.ErrRequestReused)
	release := s.request(lock.Release, alice, 0)
	released := s.do(release, lock.Released, false)
	s.do(release, lock.Released, true)
	s.shown(released)
	s.refused(acquire, lock.ErrRequestReused)
	if next := s.do(s.request(lock.Acquire, bob, long), lock.Active, false); next.Token != l.Token+1 {
		s.Errorf("token %d after %d", next.Token, l.Token)
	}
	invalid := acquire
	invalid.TTLMS = lock.MinTTL.Milliseconds() - 1
	s.refused(invalid, lock.ErrInvalid)
	if _, err := s.store.List(s.context(), tenant, "", 0); !errors.Is(err, lock.ErrInvalid) {
		s.Errorf("a page of nothing: %v", err)
	}
}

// short is a term that ends during a test.
func (s *suite) short() int64 { return max(lock.MinTTL, s.backend.MinTTL).Milliseconds() }

// testTerms lets leases end by the store's own judgement.
func testTerms(s *suite) {
	acquire := s.request(lock.Acquire, alice, s.short())
	l := s.do(acquire, lock.Active, false)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		got, err := s.store.Get(s.context(), tenant, key)
		s.must(err)
		if got.State == lock.Expired { // seeds 002-3-4 and 004-50
			l.State = lock.Expired
			break
		}
		if time.Now().After(deadline) {
			s.Fatalf("the lease has not ended: %+v", got)
		}
	}
	for range 2 {
		s.shown(l)
		s.refused(s.request(lock.Renew, alice, long), lock.ErrExpired)
		s.refused(s.request(lock.Release, alice, 0), lock.ErrExpired)
		s.refused(acquire, lock.ErrRequestReused)
	}
	next := s.do(s.request(lock.Acquire, bob, long), lock.Active, false)
	if next.Token != l.Token+1 || !s.backend.NoClock && next.AcquiredMS < l.ExpiresMS {
		s.Errorf("after %+v comes %+v", l, next)
	}
	s.refused(s.request(lock.Renew, alice, long), lock.ErrNotOwned)
}

// oddKeys are keys that a store could take for something else.
var oddKeys = []string{
	"a", "a/", "a/b", "a:b", "a b", " ", "%2F", "{a}", "{a", "a}b", "*", "?", "[a]", `\`, `"`, "'", "../a", "-", "_", "~",
	"ключ", "錠前", "🔒", strings.Repeat("k", lock.MaxKey), strings.Repeat("錠", lock.MaxKey/3),
}

// testKeys is that keys and tenants are told apart (LS-INV-001), and listed in order, in pages.
func testKeys(s *suite) {
	theirs := s.request(lock.Acquire, bob, long)
	theirs.Tenant, theirs.Key = "acme", oddKeys[0]
	s.do(theirs, lock.Active, false)
	for i, k := range oddKeys {
		r := s.request(lock.Acquire, fmt.Sprintf("owner-%d", i), long)
		r.Key = k
		s.do(r, lock.Active, false)
	}
	for i, k := range oddKeys {
		l, err := s.store.Get(s.context(), tenant, k)
		s.must(err)
		if l.Key != k || l.Owner != fmt.Sprintf("owner-%d", i) {
			s.Errorf("Get of %q answers %+v", k, l)
		}
	}
	gone := s.request(lock.Release, "owner-0", 0)
	gone.Key = oddKeys[0]
	s.do(gone, lock.Released, false)
	if l, err := s.store.Get(s.context(), "acme", oddKeys[0]); err != nil || l.State != lock.Active || l.Owner != bob {
		s.Errorf("the other tenant's lock is %+v, error %v", l, err)
	}
	want := slices.Sorted(slices.Values(oddKeys[1:]))
	for _, limit := range []int{7, len(want), lock.MaxList} {
		var got []string
		for after := ""; ; after = got[len(got)-1] {
			page, err := s.store.List(s.context(), tenant, after, limit)
			s.must(err)
			for _, l := range page {
				got = append(got, l.Key)
			}
			if len(page) < limit {
				break
			}
		}
		if !slices.Equal(got, want) {
			s.Errorf("in pages of %d, listed are %q, want %q", limit, got, want)
		}
	}
}

// testRestart checks that a backend keeps its answers (LS-INV-002).
func testRestart(s *suite) {
	if s.backend.Restart == nil {
		s.Skip("the backend promises nothing over a restart")
	}
	again := func() {
		s.Helper()
		s.closeClients()
		s.must(s.backend.Restart())
		s.store = s.open()
	}
	acquire, renew, release := s.request(lock.Acquire, alice, long), s.request(lock.Renew, alice, 2*long), s.request(lock.Release, alice, 0)
	s.do(acquire, lock.Active, false)
	l := s.do(renew, lock.Active, false)
	again()
	s.shown(l)
	s.heldBy(l)
	if got := s.do(renew, lock.Active, true); got.LeaseID != l.LeaseID || got.ExpiresMS != l.ExpiresMS {
		s.Errorf("after the restart the renewal answers %+v, want %+v", got, l)
	}
	s.do(release, lock.Released, false)
	again()
	s.do(release, lock.Released, true)
	// Seed 002-4-1.
	if got := s.do(s.request(lock.Acquire, bob, long), lock.Active, false); got.Token <= l.Token || !s.backend.Jumps && got.Token != l.Token+1 {
		s.Errorf("token %d after %d", got.Token, l.Token)
	}
}
