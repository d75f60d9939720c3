// Package locktest holds every lock store to one behaviour: Run is the
// conformance suite, called in the same way for each, with a subtest for each
// requirement of LS-SPEC-001 in which a store has a part. A History records what
// concurrent clients saw and judges whether locks can have behaved like that.
// Faulty makes a store lose requests and answers.
//
// Whatever a test looks at, its end re-checks over all grants that it saw that a
// key had one ACTIVE lease at a time and that its tokens strictly increased.
package locktest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lock"
)

// Backend is where stores keep their locks: empty when a Factory returns it, and
// the same one for all that are opened on it, like a server that several hosts
// use.
type Backend struct {
	// Open returns a client of the backend. The suite closes it.
	Open func() (lock.Store, error)

	// Advance moves the backend's clock ahead, which otherwise stands still. nil
	// when that cannot be done: the suite then uses short terms and waits for their
	// ends.
	Advance func(time.Duration)

	// Restart stops the backend, in the hardest way that it promises to survive,
	// and starts it again. nil for one that promises nothing. The suite opens new
	// clients afterwards.
	Restart func() error

	// Sweep deletes idle keys, as though KeepIdle had passed since the ends of
	// their leases where Advance is nil. nil for a store that deletes none.
	Sweep func() error

	// Forget has the backend lose everything, as a server without persistence
	// does that is restarted, and be past its fence. nil when it cannot.
	Forget func() error

	// MinTTL is the shortest term that the backend keeps, when that is more than
	// lock.MinTTL.
	MinTTL time.Duration

	// Jumps: tokens of a key may grow by more than one, because the backend may
	// forget.
	Jumps bool

	// NoClock is as in Allowed.
	NoClock bool

	// Close removes the backend once its clients are closed. It may be nil.
	Close func()
}

// Factory makes an empty backend.
type Factory func(t *testing.T) Backend

// Run runs the whole suite.
func Run(t *testing.T, factory Factory) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newSuite(t, t, factory)
			defer s.finish()
			test.run(s)
		})
	}
	t.Run("Model", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) {
			s := newSuite(rt, t, factory)
			defer s.finish()
			checkModel(rt, s)
		})
	})
}

var tests = []struct {
	name string
	run  func(*suite)
}{
	{"LS-INV-001", testOneActive},
	{"LS-INV-002", testTokensIncrease},
	{"LS-INV-002/Restart", testTokensOverRestart},
	{"LS-INV-002/IdleKeys", testTokensOverIdleKeys},
	{"LS-INV-002/Forgotten", testTokensOverForgetting},
	{"LS-INV-003", testChangeNeedsOwner},
	{"LS-INV-004", testChangeAfterEnd},
	{"LS-ACQ-001", testAcquireHeld},
	{"LS-ACQ-002", testAcquireFree},
	{"LS-ACQ-003", testTokenIsNext},
	{"LS-ACQ-004", testAcquireAgain},
	{"LS-RNW-001", testChangeNeedsOwner},
	{"LS-RNW-002", testRenewCountsFromNow},
	{"LS-RNW-003", testRenewAgain},
	{"LS-REL-001", testReleaseOwn},
	{"LS-REL-002", testReleaseFrees},
	{"LS-REL-003", testReleaseAgain},
	{"LS-CC-001", testConcurrentAcquire},
	{"LS-EXP-001", testExpiryIsIdempotent},
	{"LS-FENCE-001", testTokenTellsOldFromNew},
	{"LS-ACC-01", testConcurrentHistories},
	{"LS-ACC-02", testChangeNeedsOwner},
	{"LS-ACC-03", testTokensIncrease},
	{"LS-ACC-04", testNothingTwice},

	{"RequestReused", testRequestReused},
	{"ReceiptsAreBounded", testReceiptsAreBounded},
	{"RefusalsAreNotKept", testRefusalsAreNotKept},
	{"Invalid", testInvalid},
	{"Keys", testKeys},
	{"Tenants", testTenants},
	{"Get", testGet},
	{"List", testList},
	{"ListPages", testListPages},
	{"ContextEnded", testContextEnded},
	{"Restart", testRestart},
	{"Notify", testNotify},
	{"Faults", testFaultyHistories},
}

const (
	tenant = "default"
	key    = "orders/42"
	alice  = "alice"
	bob    = "bob"
	long   = int64(time.Hour / time.Millisecond) // a term that does not end by itself
)

// patience is for one operation, and for what must come: long enough for a slow
// machine.
const patience = time.Minute

// suite is one test on one backend.
type suite struct {
	rapid.TB
	backend Backend
	ledger  *ledger
	clients []lock.Store
	store   lock.Store // the first client
	serial  int        // of lease and request IDs
}

func newSuite(tb rapid.TB, t *testing.T, factory Factory) *suite {
	s := &suite{TB: tb, backend: factory(t), ledger: newLedger()}
	s.store = s.open()
	return s
}

// open returns one more client, whose grants are noted in the ledger.
func (s *suite) open() lock.Store {
	s.Helper()
	store, err := s.backend.Open()
	s.must(err)
	s.clients = append(s.clients, store)
	return noting{store, s.ledger}
}

// finish checks the invariants and closes everything.
func (s *suite) finish() {
	s.Helper()
	if !s.Failed() {
		if err := s.ledger.check(s); err != nil {
			s.Errorf("an invariant is broken: %v\n%s", err, s.ledger)
		}
	}
	s.closeClients()
	if s.backend.Close != nil {
		s.backend.Close()
	}
}

func (s *suite) closeClients() {
	s.Helper()
	for _, c := range s.clients {
		if err := c.Close(); err != nil {
			s.Errorf("Close: %v", err)
		}
	}
	s.clients = nil
}

// reopen stops the backend with stop, and goes on with a new client.
func (s *suite) reopen(stop func() error) {
	s.Helper()
	s.closeClients()
	s.must(stop())
	s.store = s.open()
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%v", err)
	}
}

// want checks that the error is the one expected.
func (s *suite) want(err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Fatalf("error is %v, want %v", err, want)
	}
}

// wantHeld checks that somebody else's lease stood in the way, and returns what
// was told of it.
func (s *suite) wantHeld(err error) *lock.HeldError {
	s.Helper()
	var held *lock.HeldError
	if !errors.As(err, &held) {
		s.Fatalf("error is %v, want a HeldError", err)
	}
	return held
}

// next returns a request or lease ID that was not used before.
func (s *suite) next() string {
	s.serial++
	return fmt.Sprintf("%032x", s.serial)
}

// The three requests, about the suite's key.
func (s *suite) acquire(owner string, ttl int64) lock.Request {
	return lock.Request{Op: lock.Acquire, Tenant: tenant, Key: key, Owner: owner, RequestID: s.next(), LeaseID: s.next(), TTLMS: ttl}
}

func (s *suite) renew(owner string, ttl int64) lock.Request {
	return lock.Request{Op: lock.Renew, Tenant: tenant, Key: key, Owner: owner, RequestID: s.next(), TTLMS: ttl}
}

func (s *suite) release(owner string) lock.Request {
	return lock.Request{Op: lock.Release, Tenant: tenant, Key: key, Owner: owner, RequestID: s.next()}
}

// try carries a request out.
func (s *suite) try(r lock.Request) (lock.Lease, error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.store.Do(ctx, r)
}

// do is try where it must succeed.
func (s *suite) do(r lock.Request) lock.Lease {
	s.Helper()
	l, err := s.try(r)
	if err != nil {
		s.Fatalf("%v of %q by %q: %v", r.Op, r.Key, r.Owner, err)
	}
	return l
}

func (s *suite) get() lock.Lease {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l, err := s.store.Get(ctx, tenant, key)
	s.must(err)
	return l
}

// short is a term whose end the test reaches.
func (s *suite) short() int64 {
	return max(lock.MinTTL, s.backend.MinTTL).Milliseconds()
}

// reachEnd has the term of the key's latest lease be over. Where the test has to
// wait for it, the store's word is taken that it is.
func (s *suite) reachEnd() {
	s.Helper()
	if s.backend.Advance != nil {
		s.backend.Advance(time.Duration(s.get().RemainingMS) * time.Millisecond)
	}
	for deadline := time.Now().Add(patience); s.get().State == lock.Active; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("the lease has not ended: %+v", s.get())
		}
	}
}

// expired acquires and lets the lease run out.
func (s *suite) expired(owner string) lock.Lease {
	s.Helper()
	l := s.do(s.acquire(owner, s.short()))
	s.reachEnd()
	return l
}
