// Package providertest holds every provider that coordinates to one behaviour:
// Run is its conformance suite, called in the same way for each. Faulty makes
// any provider fail as the tests of its users need it.
//
// The end of every test re-checks the grant rule over all grants and releases that it
// made: two grants with overlapping slots have disjoint intervals [created, end).
package providertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// Store is where providers keep their records: empty when a Factory returns
// it, and the same one for all that are opened on it, like a server that
// several hosts use.
type Store struct {
	// Open returns a provider on the store. The suite closes it. A store that
	// must be declared new before its first grant has been, or is by Open.
	Open func(services provider.Services) (provider.Provider, error)

	// SetClock sets the provider's clock, in Unix milliseconds. nil when it
	// cannot be set: tests that need time to pass then use short terms and
	// wait, and tests that need a clock to jump are skipped.
	SetClock func(unixMS int64)

	// Checks is how many random histories the property test runs; 0: as many as package
	// rapid does. A store that makes them slow runs fewer: the rules are the same for all
	// stores. The deep ring runs as many as package rapid does on each.
	Checks int

	// OneLayout: all machine IDs of a pool have one layout.
	OneLayout bool

	// Close removes the store once its providers are closed. It may be nil.
	Close func()
}

// Factory makes an empty store.
type Factory func(t *testing.T) Store

// OverMemory returns a provider over records in memory: all on one store are like hosts that
// share a server. Of machine IDs that have been free for equally long it grants the lowest.
func OverMemory(store *memory.Store, services provider.Services) (*pool.Provider, error) {
	return pool.New(pool.Config{
		Records: store.As(pool.AreaOf(services)), Services: services,
		Info:   provider.Info{Name: "memory", URL: "memory:", Scope: provider.ScopeUnverified},
		Random: func(int64) int64 { return 0 },
	})
}

// Run runs the whole suite.
func Run(t *testing.T, factory Factory) {
	tests := []struct {
		name string
		run  func(*suite)
	}{
		{"InvalidRequests", testInvalidRequests},
		{"Reopen", testReopen},
		{"ContextEnded", testContextEnded},
		{"Pools", testPools},
		{"TimelineContradiction", testTimelineContradiction},
		{"Request", testRequest},
		{"RequestConcurrently", testRequestConcurrently},
		{"NoSuchSlot", testNoSuchSlot},
		{"HugeLayout", testHugeLayout},
		{"Concurrency", testConcurrency},
		{"ClockOutsideTimeline", testClockOutsideTimeline},
		{"FenceByHand", testFenceByHand},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newSuite(t, t, factory)
			defer s.finish()
			test.run(s)
		})
	}
	t.Run("Model", func(t *testing.T) {
		histories(t, func(rt *rapid.T) int {
			s := newSuite(rt, t, factory)
			defer s.finish()
			testModel(rt, s)
			return s.store.Checks
		})
	})
}

// histories checks a property with random histories. It returns Store.Checks.
func histories(t *testing.T, property func(*rapid.T) (checks int)) {
	runs, most, failed := 0, 0, false
	rapid.Check(t, func(rt *rapid.T) {
		if runs++; most > 0 && runs > most && !failed {
			return
		}
		defer func() { failed = failed || rt.Failed() }() // a failed history is made shorter
		checks := property(rt)
		if !ring.IsDeep(t) {
			most = checks
		}
	})
}

// testTime is where settable clocks start.
const testTime = snowflake.DefaultEpochMS + 100*24*3600*1000

// suite is one test on one store.
type suite struct {
	rapid.TB
	store   Store
	clock   atomic.Int64 // Unix ms, when the store's can be set
	ledger  *ledger
	clients []*client
}

// newSuite makes a store for a test. Failures are reported to tb; t is the test
// that the factory may use.
func newSuite(tb rapid.TB, t *testing.T, factory Factory) *suite {
	s := &suite{TB: tb, store: factory(t), ledger: &ledger{entries: map[ledgerKey]*entry{}}}
	if s.store.SetClock != nil {
		s.set(testTime)
	}
	return s
}

// finish checks the grant rule and closes everything.
func (s *suite) finish() {
	s.Helper()
	s.closeAll()
	if s.store.Close != nil {
		s.store.Close()
	}
	if err := s.ledger.check(); err != nil {
		s.Errorf("the grant rule is broken: %v\n%s", err, s.ledger)
	}
}

// closeAll closes all clients.
func (s *suite) closeAll() {
	s.Helper()
	for _, c := range s.clients {
		if err := c.Close(); err != nil {
			s.Errorf("Close: %v", err)
		}
	}
	s.clients = nil
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%v", err)
	}
}

func (s *suite) want(err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Fatalf("error is %v, want %v", err, want)
	}
}

// ctx is for one operation: long enough for a slow machine.
func (s *suite) ctx() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Minute)
}

// now is the provider's time as far as the test knows it, in Unix ms.
func (s *suite) now() int64 {
	if s.store.SetClock != nil {
		return s.clock.Load()
	}
	return time.Now().UnixMilli()
}

// set sets the store's clock, which it must have.
func (s *suite) set(unixMS int64) {
	s.clock.Store(unixMS)
	s.store.SetClock(unixMS)
}

// reach sets the provider's clock to unixMS, unless it is later, or waits until then.
func (s *suite) reach(unixMS int64) {
	if s.store.SetClock != nil {
		s.set(max(unixMS, s.clock.Load()))
		return
	}
	time.Sleep(time.Until(time.UnixMilli(unixMS + 20)))
}

// passes lets ms milliseconds pass, also while others use the clock; a clock that can be
// set may jump.
func (s *suite) passes(ms int64) {
	if s.store.SetClock == nil {
		time.Sleep(time.Duration(ms) * time.Millisecond)
		return
	}
	s.store.SetClock(s.clock.Add(ms))
}

// lasting is terms for leases that must not end during the test.
func lasting() provider.Terms { return provider.DefaultTerms() }

// passing returns terms for leases that end during the test.
func (s *suite) passing() provider.Terms {
	t := provider.DefaultTerms()
	if s.store.SetClock == nil {
		t.Term, t.Quarantine = 2*time.Second, time.Second
	}
	return t
}

// ids limits terms to the machine IDs low to high, both included.
func ids(t provider.Terms, low, high int64) provider.Terms {
	t.IDs = provider.IDRange{Low: low, End: high + 1}
	return t
}

// open opens a provider that grants to every service on the same terms.
func (s *suite) open(terms provider.Terms) *client {
	s.Helper()
	return s.openServices(provider.Services{Default: terms})
}

func (s *suite) openServices(services provider.Services) *client {
	s.Helper()
	p, err := s.store.Open(services)
	if err != nil {
		s.Fatalf("Open: %v", err)
	}
	if info := p.Info(); info.Name == "" || info.URL == "" || info.Scope == "" || !info.Coordinated {
		s.Errorf("Info leaves something out: %+v", info)
	}
	c := &client{Provider: p, suite: s, services: services}
	s.clients = append(s.clients, c)
	return c
}

// client is a provider that notes its grants and releases in the ledger.
type client struct {
	provider.Provider
	suite    *suite
	services provider.Services
}

// try acquires, checks the form of the grant, and notes it.
func (c *client) try(req provider.AcquireRequest) ([]lease.Lease, error) {
	ctx, cancel := c.suite.ctx()
	defer cancel()
	leases, err := c.Acquire(ctx, req)
	if err != nil {
		if len(leases) > 0 {
			return nil, fmt.Errorf("%d leases were returned with the error %w", len(leases), err)
		}
		return nil, err
	}
	for _, l := range leases {
		if err := c.suite.ledger.granted(c.services.Of(req.Service), l); err != nil {
			return nil, err
		}
	}
	if len(leases) == 0 {
		return nil, errors.New("Acquire returned neither a lease nor an error")
	}
	return leases, nil
}

// acquire is try where it must succeed.
func (c *client) acquire(req provider.AcquireRequest) []lease.Lease {
	c.suite.Helper()
	leases, err := c.try(req)
	if err != nil {
		c.suite.Fatalf("Acquire: %v", err)
	}
	return leases
}

// one acquires a single lease.
func (c *client) one() lease.Lease {
	c.suite.Helper()
	leases := c.acquire(provider.AcquireRequest{})
	if len(leases) != 1 {
		c.suite.Fatalf("%d leases were granted, want 1", len(leases))
	}
	return leases[0]
}

// full acquires where nothing must be free.
func (c *client) full() *provider.FullError {
	c.suite.Helper()
	leases, err := c.try(provider.AcquireRequest{})
	var full *provider.FullError
	if !errors.As(err, &full) {
		c.suite.Fatalf("Acquire gave %v and the error %v, want a FullError", leases, err)
	}
	return full
}

// SignedRelease gives the lease back as of the time.
func SignedRelease(l lease.Lease, timestampMS int64) provider.ReleaseRequest {
	return provider.ReleaseRequest{
		ID: l.ID, BitSeq: l.BitSeq, TimestampMS: timestampMS, Signature: lease.Sign(l.Secret, l.ID, timestampMS),
	}
}

// giveBack releases a lease of the default service.
func (c *client) giveBack(l lease.Lease, timestampMS int64) error {
	return c.giveBackOf("", l, timestampMS)
}

func (c *client) giveBackOf(service string, l lease.Lease, timestampMS int64) error {
	req := SignedRelease(l, timestampMS)
	req.Service = service
	return c.release(l, req)
}

// release sends the request, and notes it for the lease if it is carried out.
func (c *client) release(l lease.Lease, req provider.ReleaseRequest) error {
	ctx, cancel := c.suite.ctx()
	defer cancel()
	err := c.Release(ctx, req)
	if err == nil {
		c.suite.ledger.released(c.services.Of(req.Service).Pool, l, req.TimestampMS)
	}
	return err
}

// extend extends a lease of the service, and notes it.
func (c *client) extend(service string, l lease.Lease) (lease.Lease, error) {
	ctx, cancel := c.suite.ctx()
	defer cancel()
	longer, err := provider.Extend(ctx, c.Provider, service, l)
	if err == nil {
		c.suite.ledger.extended(c.services.Of(service).Pool, longer)
	}
	return longer, err
}

// list lists the default service's pool.
func (c *client) list() []provider.Record {
	c.suite.Helper()
	ctx, cancel := c.suite.ctx()
	defer cancel()
	records, err := c.Provider.List(ctx, "")
	c.suite.must(err)
	if !slices.IsSortedFunc(records, provider.CompareRecords) {
		c.suite.Errorf("List is not in the order of slots")
	}
	return c.without(records)
}

// locate asks who held the low bits.
func (c *client) locate(low, atMS int64) []provider.Record {
	c.suite.Helper()
	ctx, cancel := c.suite.ctx()
	defer cancel()
	records, err := c.Provider.Locate(ctx, "", low, atMS)
	c.suite.must(err)
	return c.without(records)
}

// without checks that no record shows a secret.
func (c *client) without(records []provider.Record) []provider.Record {
	c.suite.Helper()
	for _, r := range records {
		if r.Lease.Secret != "" {
			c.suite.Errorf("the secret of %v is shown", r.Lease)
		}
	}
	return records
}
