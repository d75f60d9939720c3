package providertest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// testVerifyForged asks with signatures of something else, and about slots that no pool
// has.
func testVerifyForged(s *suite) {
	c := s.open(ids(lasting(), 0, 3))
	if !c.Info().Can.Verify {
		s.Skip("the provider is no Verifier")
	}
	ctx, cancel := s.ctx()
	defer cancel()
	unknown := provider.ClaimOf(lasting().Grant(2, s.now(), provider.NewSecret()))
	if lost, err := c.Provider.Verify(ctx, "", []provider.Claim{unknown}); err != nil || len(lost) != 1 {
		s.Errorf("before there is a pool %v are lost (%v)", lost, err)
	}
	l := c.one()
	right := provider.ClaimOf(l)
	claims := []provider.Claim{right, unknown}
	for _, change := range []func(*provider.Claim){
		func(c *provider.Claim) { c.Signature = "00" },
		func(c *provider.Claim) { c.Signature = l.Secret },
		func(c *provider.Claim) { c.Signature = lease.Sign(l.Secret, l.ID, l.Created) },
		func(c *provider.Claim) { c.Signature = lease.SignExtend(l.Secret, l.ID, l.Created, l.Expired) },
		func(c *provider.Claim) { c.CreatedMS++ },
		func(c *provider.Claim) { c.ID += 1 << 13 },
		func(c *provider.Claim) { c.ID = -1 << 63 },
		func(c *provider.Claim) { c.BitSeq = 9 },
		func(c *provider.Claim) { c.BitSeq = -1 },
		func(c *provider.Claim) { c.BitSeq = 1000 },
	} {
		claim := right
		change(&claim)
		claims = append(claims, claim)
	}
	claims = append(claims, right)
	lost, err := c.Provider.Verify(ctx, "", claims)
	if want := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}; err != nil || !slices.Equal(lost, want) {
		s.Errorf("of forged claims %v are lost (%v), want %v", lost, err, want)
	}
}

// Seeds 000-A.1-2 and 001-21.
func testExtendForged(s *suite) {
	c := s.open(ids(lasting(), 0, 3))
	if !c.Info().Can.Extend {
		s.Skip("the provider is no Extender")
	}
	l := c.one()
	for name, signature := range map[string]string{
		"another secret":  lease.SignExtend("x", l.ID, l.Created, l.Expired),
		"the secret":      l.Secret,
		"a release's":     lease.Sign(l.Secret, l.ID, l.Created),
		"a verify's":      lease.SignVerify(l.Secret, l.ID, l.Created),
		"another end's":   lease.SignExtend(l.Secret, l.ID, l.Created, l.Expired+1),
		"no signature":    "00",
		"another machine": lease.SignExtend(l.Secret, l.ID+1, l.Created, l.Expired),
	} {
		ctx, cancel := s.ctx()
		longer, err := c.Provider.Extend(ctx, provider.ExtendRequest{
			ID: l.ID, BitSeq: l.BitSeq, CreatedMS: l.Created, ExpiredMS: l.Expired, Signature: signature,
		})
		cancel()
		if !errors.Is(err, provider.ErrBadSignature) {
			s.Errorf("%s: extended to %v with the error %v", name, longer, err)
		}
	}
	other := l
	other.ID = (l.ID + 1) % 4
	_, err := c.extend("", other)
	s.want(err, provider.ErrNotFound)
}

// testRecords: what a store says of its grants.
// Seeds 000-4.1-1, 000-6.1-1 and 000-6.2-3.
func testRecords(s *suite) {
	c := s.layouts(lasting(), provider.IDRange{Low: 4, End: 8}, 9, provider.IDRange{Low: 0, End: 2})
	can := c.Info().Can
	if !can.List {
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
	want := []provider.Record{
		{Lease: fine[0], Meta: meta, End: at + 1, Released: true}, {Lease: fine[1], Meta: meta, End: fine[1].ReservedUntil},
		{Lease: coarse, Service: "coarse", End: coarse.ReservedUntil},
	}
	slices.SortFunc(want, provider.CompareRecords)
	compare := func(got, want []provider.Record) {
		s.Helper()
		if !slices.EqualFunc(got, want, sameRecord) {
			s.Errorf("the records are %+v, want %+v", got, want)
		}
	}
	compare(c.list(), want)
	if !can.Locate {
		return
	}
	i := slices.IndexFunc(want, func(r provider.Record) bool { return r.Lease == coarse })
	compare(c.locate(coarse.Slot().Start+coarse.Slot().Size()/2, coarse.Created), want[i:i+1])
	for _, outside := range []int64{-1, coarse.Slot().End + 8<<8, 1 << 21, 1 << 40, 1<<63 - 1} {
		if got := c.locate(outside, coarse.Created); len(got) > 0 {
			s.Errorf("%v held the low bits %d", got, outside)
		}
	}
}

// sameRecord compares all but the secret, and the ReservedUntil that End stands for.
func sameRecord(a, b provider.Record) bool {
	x, y := a.Lease, b.Lease
	x.Secret, x.ReservedUntil, y.Secret, y.ReservedUntil = "", 0, "", 0
	return x == y && a.Service == b.Service && maps.Equal(a.Meta, b.Meta) && a.End == b.End && a.Released == b.Released
}

// Seed 001-7.
func testCounters(s *suite) {
	terms := ids(lasting(), 0, 1)
	c, d := s.open(terms), s.open(terms)
	if !c.Info().Can.Count {
		s.Skip("the provider does not count")
	}
	a, b := c.one(), d.one()
	c.full()
	d.full()
	want := map[string]int64{
		"client_id_count": 2, "client_get_id_count": 6, "client_get_id_success": 4, "get_id_no_available_id": 2,
	}
	if c.Info().Can.Extend {
		longer, err := c.extend("", a)
		s.must(err)
		forged := b
		forged.Secret = provider.NewSecret()
		_, err = c.extend("", forged)
		s.want(err, provider.ErrBadSignature)
		s.must(c.giveBack(longer, s.now()))
		_, err = c.extend("", longer)
		s.want(err, provider.ErrConflict)
		maps.Copy(want, map[string]int64{
			"extend_ttl_count": 3, "extend_ttl_success": 1, "extend_ttl_ownership_error": 1, "extend_ttl_expire_warning": 1,
		})
	} else {
		s.must(c.giveBack(a, s.now()))
	}
	// A store may write what it has counted with the next grant.
	s.must(c.giveBack(b, s.now()))
	s.reach(s.now() + 1)
	c.one()
	d.one()
	got := c.counters()
	for _, name := range provider.CounterNames {
		if n, counted := got[name]; !counted || n != want[name] {
			s.Errorf("%s is %d (%v), want %d", name, n, counted, want[name])
		}
	}
}

// testCountersOfOthers: a lease server counts its clients, and not itself.
// Seed 001-9.
func testCountersOfOthers(s *suite) {
	c := s.open(ids(lasting(), 0, 9))
	if !c.Info().Can.Count || strings.HasPrefix(c.Info().Name, "http") {
		s.Skip("the provider does not count, or decides itself whose request it sends")
	}
	for i, client := range []provider.Client{
		provider.KnownClient, provider.NewClient, provider.KnownClient, provider.NewClient, provider.OwnClient, provider.OwnClient,
	} {
		c.acquire(provider.AcquireRequest{Client: client})
		if got, want := c.counters()["client_id_count"], []int64{0, 1, 1, 2, 3, 3}[i]; got != want {
			s.Errorf("after %d acquires client_id_count is %d, want %d", i+1, got, want)
		}
	}
}

// forget makes the store lose everything.
func (s *suite) forget() {
	s.Helper()
	if s.store.Forget == nil {
		s.Skip("the store does not forget, or cannot be made to")
	}
	s.must(s.store.Forget())
}

// fenced acquires where a store that has forgotten must refuse.
func (c *client) fenced() *provider.FencedError {
	c.suite.Helper()
	return c.mustBeFenced(provider.AcquireRequest{})
}

func (c *client) mustBeFenced(req provider.AcquireRequest) *provider.FencedError {
	c.suite.Helper()
	leases, err := c.try(req)
	var fenced *provider.FencedError
	if !errors.As(err, &fenced) || fenced.Reason == "" {
		c.suite.Fatalf("Acquire gave %v and the error %v, want a FencedError with a reason", leases, err)
	}
	return fenced
}

// heldBack checks that a fenced store neither repeats nor extends a lease: while its clock
// was ahead, it may have granted the slot to another, and forgotten that.
func (c *client) heldBack(l lease.Lease, request string) {
	c.suite.Helper()
	var fenced *provider.FencedError
	if leases, err := c.try(provider.AcquireRequest{RequestID: request}); !errors.As(err, &fenced) {
		c.suite.Errorf("the acquire, repeated while the store is fenced, gave %v, %v", leases, err)
	}
	if !c.Info().Can.Extend {
		return
	}
	if longer, err := c.extend("", l); !errors.As(err, &fenced) {
		c.suite.Errorf("extended while the store is fenced: %v, %v", longer, err)
	}
	ctx, cancel := c.suite.ctx()
	defer cancel()
	if lost, err := provider.Verify(ctx, c.Provider, "", []lease.Lease{l}); err != nil || len(lost) > 0 {
		c.suite.Errorf("while the store is fenced %v is lost: %v, %v", l, lost, err)
	}
}

// testFenceByHand: the store is fenced and has kept its records.
func testFenceByHand(s *suite) {
	terms := ids(s.passing(), 0, 3)
	c := s.open(terms)
	if !c.Info().Can.Fence {
		s.Skip("the provider is not fenced by hand")
	}
	l, other := c.acquire(provider.AcquireRequest{RequestID: "r"})[0], c.one()
	ctx, cancel := s.ctx()
	defer cancel()
	until, err := c.Provider.Fence(ctx)
	s.must(err)
	c.fenced()
	c.heldBack(l, "r")
	s.must(c.giveBack(other, s.now()))
	s.reach(until.UntilMS)
	_, err = c.extend("", l) // the fence has outlasted it
	s.want(err, provider.ErrConflict)
}

// testFence: what was lost may have been granted on other terms than those of the
// provider that finds the store empty.
func testFence(s *suite) {
	short := ids(s.passing(), 0, 3)
	long := short
	long.Term, long.Quarantine = 2*short.Term, 2*short.Quarantine
	for _, late := range []bool{false, true} {
		c, d := s.open(short), s.open(long)
		request := provider.NewSecret()
		l := d.acquire(provider.AcquireRequest{RequestID: request})[0]
		s.forget()
		c.heldBack(l, request)
		until := c.fenced().UntilMS
		if late && until < l.ReservedUntil { // else the store still knows the longer term
			s.reach(until) // a provider that comes only now is heard all the same
		}
		until = d.fenced().UntilMS
		if until < l.ReservedUntil {
			s.Errorf("grants are refused until %d, and a lease that was lost is reserved until %d", until, l.ReservedUntil)
		}
		if again := c.fenced().UntilMS; again != until {
			s.Errorf("the fence ends at %d for one and at %d for another", until, again)
		}
		if s.store.SetClock != nil {
			s.reach(until - 1)
			c.fenced()
		}
		s.reach(until)
		for range 4 { // among them the lost one's slot; the ledger compares
			c.one()
		}
		s.reach(s.now() + (long.Term + long.Quarantine).Milliseconds()) // the second round begins without a lease
	}
}

// Seeds 000-11.1-1 and 001-3.
func testInit(s *suite) {
	terms := ids(lasting(), 5, 5)
	s.forget()
	c := s.open(terms)
	if !c.Info().Can.Init {
		s.Fatalf("the store may forget, and the provider cannot be told that it is new")
	}
	c.fenced()
	s.must(c.Init(context.Background(), ""))
	l := c.one()
	s.must(c.Init(context.Background(), "")) // on a store in use it changes nothing
	if full := c.full(); full.NextEndMS != l.ReservedUntil {
		s.Errorf("the slot is free at %d, want %d", full.NextEndMS, l.ReservedUntil)
	}
	other := terms
	other.Timeline.EpochMS++
	p, err := s.store.Open(provider.Services{Default: other})
	if err == nil {
		err = p.Init(context.Background(), "")
		s.must(p.Close())
	}
	s.want(err, provider.ErrInvalid)
}
