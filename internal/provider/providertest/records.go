package providertest

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// lostOf verifies the leases and returns the machine IDs of those lost.
func (c *client) lostOf(leases ...lease.Lease) []int64 {
	c.suite.Helper()
	ctx, cancel := c.suite.ctx()
	defer cancel()
	lost, err := provider.Verify(ctx, c.Provider, "", leases)
	if err != nil {
		c.suite.Fatalf("Verify: %v", err)
	}
	machineIDs := []int64{}
	for _, l := range lost {
		machineIDs = append(machineIDs, l.ID)
	}
	slices.Sort(machineIDs)
	return machineIDs
}

func testVerify(s *suite) {
	c := s.open(ids(s.passing(), 0, 3))
	if !c.Info().Can.Verify {
		s.Skip("the provider is no Verifier")
	}
	unknown := s.passing().Grant(2, s.now(), provider.NewSecret())
	want := func(what string, got []int64, want ...int64) {
		s.Helper()
		if !slices.Equal(got, append([]int64{}, want...)) {
			s.Errorf("%s: machine IDs %v are lost, want %v", what, got, want)
		}
	}
	want("no pool yet", c.lostOf(unknown), 2)
	want("nothing asked", c.lostOf())
	leases := c.acquire(provider.AcquireRequest{ThroughputPerMS: 256 * 4})
	slices.SortFunc(leases, func(a, b lease.Lease) int { return int(a.ID - b.ID) })
	want("all held", c.lostOf(leases...))
	want("another's secret", c.lostOf(unknown, leases[0]), 2)
	s.verifyForged(c, leases[0])
	s.must(c.giveBack(leases[1], s.now()))
	want("released", c.lostOf(leases...), 1)
	s.reach(leases[0].Expired)
	want("expired", c.lostOf(leases...), 1)
	s.reach(leases[0].ReservedUntil)
	taken := c.acquire(provider.AcquireRequest{ThroughputPerMS: 256 * 2})
	want("taken over", c.lostOf(leases[taken[0].ID], leases[taken[1].ID]),
		min(taken[0].ID, taken[1].ID), max(taken[0].ID, taken[1].ID))
}

// verifyForged asks with signatures that are none, or of something else, and about
// slots that no pool has.
func (s *suite) verifyForged(c *client, l lease.Lease) {
	s.Helper()
	right := provider.ClaimOf(l)
	forged := func(change func(*provider.Claim)) provider.Claim {
		claim := right
		change(&claim)
		return claim
	}
	claims := []provider.Claim{
		forged(func(c *provider.Claim) { c.Signature = "00" }),
		forged(func(c *provider.Claim) { c.Signature = l.Secret }),
		forged(func(c *provider.Claim) { c.Signature = lease.Sign(l.Secret, l.ID, l.Created) }),
		forged(func(c *provider.Claim) { c.Signature = lease.SignExtend(l.Secret, l.ID, l.Created, l.Expired) }),
		right,
		forged(func(c *provider.Claim) { c.CreatedMS++ }),
		forged(func(c *provider.Claim) { c.ID += 1 << 13 }),
		forged(func(c *provider.Claim) { c.ID = -1 << 63 }),
		forged(func(c *provider.Claim) { c.BitSeq = 9 }),
		forged(func(c *provider.Claim) { c.BitSeq = -1 }),
		forged(func(c *provider.Claim) { c.BitSeq = 1000 }),
	}
	ctx, cancel := s.ctx()
	defer cancel()
	lost, err := c.Provider.Verify(ctx, "", claims)
	if want := []int{0, 1, 2, 3, 5, 6, 7, 8, 9, 10}; err != nil || !slices.Equal(lost, want) {
		s.Errorf("of forged claims %v are lost (%v), want %v", lost, err, want)
	}
}

// list lists the default service's pool.
func (c *client) list() []provider.Record {
	c.suite.Helper()
	ctx, cancel := c.suite.ctx()
	defer cancel()
	records, err := c.Provider.List(ctx, "")
	if err != nil {
		c.suite.Fatalf("List: %v", err)
	}
	if !slices.IsSortedFunc(records, provider.CompareRecords) {
		c.suite.Errorf("List is not in the order of slots")
	}
	for _, r := range records {
		if r.Lease.Secret != "" {
			c.suite.Errorf("List shows the secret of %v", r.Lease)
		}
	}
	return records
}

func testList(s *suite) {
	c := s.layouts(lasting(), provider.IDRange{Low: 4, End: 8}, 9, provider.IDRange{Low: 0, End: 2})
	if !c.Info().Can.List {
		s.Skip("the provider is no Lister")
	}
	if got := c.list(); len(got) != 0 {
		s.Errorf("an empty store lists %v", got)
	}
	meta := map[string]string{"host": "a", "pid": "1"}
	fine := c.acquire(provider.AcquireRequest{Meta: meta, ThroughputPerMS: 512})
	coarse := c.acquire(provider.AcquireRequest{Service: "coarse"})[0]
	at := s.now()
	s.must(c.giveBack(fine[0], at))

	records := c.list()
	if len(records) != 3 {
		s.Fatalf("List has %d records, want 3: %v", len(records), records)
	}
	for _, l := range []lease.Lease{fine[0], fine[1], coarse} {
		i := slices.IndexFunc(records, func(r provider.Record) bool { return r.Lease.Slot() == l.Slot() && r.Lease.BitSeq == l.BitSeq })
		if i < 0 {
			s.Fatalf("%v is not listed", l)
		}
		r := records[i]
		want := provider.Record{Service: "", Meta: meta, End: l.ReservedUntil}
		if l == coarse {
			want.Service, want.Meta = "coarse", nil
		}
		if l == fine[0] {
			want.End, want.Released = at+1, true
		}
		if r.Service != want.Service || !maps.Equal(r.Meta, want.Meta) || r.End != want.End || r.Released != want.Released {
			s.Errorf("the record is %+v, want %+v", r, want)
		}
		if r.Lease.Created != l.Created || r.Lease.Expired != l.Expired || r.Lease.Layout() != l.Layout() || r.Lease.Timeline() != l.Timeline() {
			s.Errorf("the record's lease is %+v, want %+v", r.Lease, l)
		}
	}
}

// testConcurrency has many goroutines on several providers acquire and release
// in a small space of slots of two layouts. The ledger says at the end whether
// any two overlapped.
func testConcurrency(s *suite) {
	terms := lasting()
	terms.Term, terms.Quarantine = 40*time.Millisecond, 10*time.Millisecond
	var clients []*client
	for range 3 {
		clients = append(clients, s.layouts(terms, provider.IDRange{Low: 0, End: 12}, 9, provider.IDRange{Low: 2, End: 8}))
	}
	const goroutines, rounds = 8, 30
	var grants atomic.Int64
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			c := clients[g%len(clients)]
			random := rand.New(rand.NewPCG(uint64(g), 1))
			for range rounds {
				req := provider.AcquireRequest{ThroughputPerMS: random.Int64N(800), Service: []string{"", "coarse"}[random.IntN(2)]}
				leases, err := c.try(req)
				var full *provider.FullError
				switch {
				case errors.As(err, &full):
					s.passTime(5)
				case err != nil:
					s.Errorf("Acquire: %v", err)
					return
				}
				grants.Add(int64(len(leases)))
				for _, l := range leases {
					if random.IntN(2) == 0 {
						at := s.now() + random.Int64N(5)
						err := c.release(l, provider.ReleaseRequest{
							Service: req.Service, ID: l.ID, BitSeq: l.BitSeq, TimestampMS: at, Signature: lease.Sign(l.Secret, l.ID, at),
						})
						// Somebody else's by now is what time may have made it.
						if err != nil && !errors.Is(err, provider.ErrBadSignature) {
							s.Errorf("Release: %v", err)
						}
					}
				}
			}
		})
	}
	wg.Wait()
	if n := grants.Load(); n < goroutines*rounds/4 {
		s.Errorf("only %d grants in %d rounds", n, goroutines*rounds)
	}
}

// passTime lets ms milliseconds pass while others use the clock too.
func (s *suite) passTime(ms int64) {
	if s.store.SetClock == nil {
		time.Sleep(time.Duration(ms) * time.Millisecond)
		return
	}
	s.store.SetClock(s.clock.Add(ms))
}

func testClockAhead(s *suite) {
	s.needsClock()
	c := s.open(ids(lasting(), 0, 2))
	hour := time.Hour.Milliseconds()
	before := c.one()
	s.set(testTime + hour)
	during := c.one()
	if during.ID == before.ID {
		s.Fatalf("machine ID %d was granted again, and two were never granted", during.ID)
	}
	s.set(testTime)
	// The clock is back: what was granted an hour ahead is taken until then,
	// and the lease from before is still its holder's.
	c.one()
	if full := c.full(); full.NextEndMS != before.ReservedUntil {
		s.Errorf("the next slot is free at %d, want %d", full.NextEndMS, before.ReservedUntil)
	}
	s.must(c.giveBack(before, testTime))
	// A grant that nobody can use yet, given back: free from its beginning on.
	s.must(c.giveBack(during, testTime))
	s.set(testTime + 1)
	if l := c.one(); l.ID != before.ID {
		s.Errorf("machine ID %d was granted, want %d", l.ID, before.ID)
	}
	c.full()
	s.set(during.Created)
	c.acquire(provider.AcquireRequest{ThroughputPerMS: 512})
}

func testClockBack(s *suite) {
	s.needsClock()
	c := s.open(ids(lasting(), 0, 1))
	a := c.one()
	s.set(testTime - 2*time.Hour.Milliseconds())
	c.one() // the one never granted
	full := c.full()
	if want := testTime - 2*time.Hour.Milliseconds() + 20*time.Minute.Milliseconds(); full.NextEndMS != want {
		s.Errorf("the next slot is free at %d, want %d", full.NextEndMS, want)
	}
	s.set(testTime - time.Hour.Milliseconds())
	if l := c.one(); l.ID == a.ID {
		s.Errorf("machine ID %d was granted before its end", l.ID)
	}
	c.full()
	if c.Info().Can.List && len(c.list()) != 2 {
		s.Errorf("List has %d records, want 2", len(c.list()))
	}
}

func testClockOutsideTimeline(s *suite) {
	s.needsClock()
	terms := ids(lasting(), 0, 3)
	c := s.open(terms)
	for _, at := range []int64{0, terms.Timeline.EpochMS - 1, terms.Timeline.EndMS(), 1 << 60} {
		s.set(at)
		if _, err := c.try(provider.AcquireRequest{}); err == nil {
			s.Errorf("a lease was granted at %d, outside the pool's time", at)
		}
	}
	s.set(terms.Timeline.EpochMS)
	c.one()
}

// testCrash has an acquire die at each step; the same request then comes again,
// as from a keeper that does not know what became of the first.
func testCrash(s *suite) {
	if s.store.Crash == nil {
		s.Skip("a crash cannot be arranged")
	}
	terms := ids(lasting(), 0, int64(len(s.store.CrashSteps)))
	for _, step := range s.store.CrashSteps {
		req := provider.AcquireRequest{RequestID: provider.NewSecret()}
		if err := s.store.Crash(step, provider.Services{Default: terms}, req); err != nil {
			s.Fatalf("crash at %q: %v", step, err)
		}
		c := s.open(terms)
		l := c.acquire(req)[0]
		if again := c.acquire(req)[0]; again != l {
			s.Errorf("after the crash at %q, one request gave %v and %v", step, l, again)
		}
	}
	// Each request has taken one slot, whether its first attempt was lost
	// before the grant or after, so that one is left.
	c := s.open(terms)
	c.one()
	c.full()
}
