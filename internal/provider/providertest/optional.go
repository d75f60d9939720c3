package providertest

import (
	"context"
	"errors"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// extended notes that a grant lasts longer.
func (g *ledger) extended(pool string, l lease.Lease) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e, ok := g.entries[ledgerKey{pool, l.Key()}]; ok {
		e.lease, e.end, e.extended = l, max(e.end, l.ReservedUntil), true
	}
}

// wasExtended reports whether a grant has other times than it began with.
func (g *ledger) wasExtended(pool string, l lease.Lease) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, ok := g.entries[ledgerKey{pool, l.Key()}]
	return ok && e.extended
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

// needsExtender skips the test where the provider cannot extend.
func (s *suite) needsExtender(c *client) provider.Terms {
	s.Helper()
	if !c.Info().Can.Extend {
		s.Skip("the provider is no Extender")
	}
	return c.services.Default
}

func testExtend(s *suite) {
	c := s.open(ids(s.passing(), 5, 5))
	terms := s.needsExtender(c)
	l := c.one()
	for range 3 {
		s.reach(s.now() + terms.Term.Milliseconds()/2)
		before := s.now()
		longer, err := c.extend("", l)
		s.must(err)
		want := l
		want.Expired = longer.Expired
		want.ReservedUntil = longer.Expired + terms.Quarantine.Milliseconds()
		if longer != want || longer.Expired < before+terms.Term.Milliseconds() {
			s.Fatalf("at %d %+v became %+v", before, l, longer)
		}
		l = longer
	}
	if full := c.full(); full.NextEndMS != l.ReservedUntil {
		s.Errorf("the slot is free at %d, want %d", full.NextEndMS, l.ReservedUntil)
	}
	if c.Info().Can.Verify && len(c.lostOf(l)) > 0 {
		s.Errorf("the extended lease is said to be lost")
	}
	at := s.now()
	s.must(c.giveBack(l, at))
	s.reach(at + 1)
	c.one()
}

func testExtendNeverShortens(s *suite) {
	c := s.openServices(provider.Services{Default: lasting(), Named: map[string]provider.Terms{"short": func() provider.Terms {
		t := lasting()
		t.Term, t.Quarantine = time.Second, 0
		return t
	}()}})
	s.needsExtender(c)
	l := c.one()
	longer, err := c.extend("short", l)
	s.must(err)
	if longer != l {
		s.Errorf("%+v became %+v", l, longer)
	}
}

func testExtendRefused(s *suite) {
	c := s.open(ids(s.passing(), 0, 3))
	s.needsExtender(c)
	l := c.one()
	refused := func(what string, l lease.Lease, want error) {
		s.Helper()
		if longer, err := c.extend("", l); !errors.Is(err, want) {
			s.Errorf("%s: %v was extended to %v with the error %v, want %v", what, l, longer, err, want)
		}
	}
	forged, other := l, l
	forged.Secret = provider.NewSecret()
	refused("another secret", forged, provider.ErrBadSignature)
	for name, signature := range map[string]string{
		"the secret itself": l.Secret, "a release's": lease.Sign(l.Secret, l.ID, l.Created),
		"a verification's": lease.SignVerify(l.Secret, l.ID, l.Created), "another end's": lease.SignExtend(l.Secret, l.ID, l.Created, l.Expired+1), "none": "00",
	} {
		ctx, cancel := s.ctx()
		longer, err := c.Provider.Extend(ctx, provider.ExtendRequest{
			ID: l.ID, BitSeq: l.BitSeq, CreatedMS: l.Created, ExpiredMS: l.Expired, Signature: signature,
		})
		cancel()
		if !errors.Is(err, provider.ErrBadSignature) {
			s.Errorf("signed with %s: extended to %v with the error %v", name, longer, err)
		}
	}
	other.ID = (l.ID + 1) % 4
	refused("never granted", other, provider.ErrNotFound)

	released := c.one()
	s.must(c.giveBack(released, s.now()))
	refused("released", released, provider.ErrConflict)

	s.reach(l.Expired)
	refused("expired", l, provider.ErrConflict)
	s.reach(l.ReservedUntil)
	for range 4 {
		c.one()
	}
	refused("taken over", l, provider.ErrBadSignature)
}

// testExtendOverlap: a clock that was ahead has had an overlapping slot of
// another layout granted; the lease from before must not grow into that.
func testExtendOverlap(s *suite) {
	s.needsClock()
	for _, first := range []string{"", "coarse"} {
		c := s.layouts(lasting(), provider.IDRange{Low: 2*int64(len(first)) + 1, End: 2*int64(len(first)) + 2}, 9,
			provider.IDRange{Low: int64(len(first)), End: int64(len(first)) + 1})
		s.needsExtender(c)
		second := "coarse"
		if first == second {
			second = ""
		}
		s.set(testTime)
		l := c.acquire(provider.AcquireRequest{Service: first})[0]
		s.set(testTime + time.Hour.Milliseconds())
		c.acquire(provider.AcquireRequest{Service: second})
		s.set(testTime + 1000)
		if longer, err := c.extend(first, l); err == nil {
			s.Errorf("%v was extended to %v", l, longer)
		}
	}
}

// locate asks who held the low bits.
func (c *client) locate(low, atMS int64) []provider.Record {
	c.suite.Helper()
	ctx, cancel := c.suite.ctx()
	defer cancel()
	records, err := c.Provider.Locate(ctx, "", low, atMS)
	if err != nil {
		c.suite.Fatalf("Locate: %v", err)
	}
	for _, r := range records {
		if r.Lease.Secret != "" {
			c.suite.Errorf("Locate shows the secret of %v", r.Lease)
		}
	}
	return records
}

func testLocate(s *suite) {
	c := s.layouts(s.passing(), provider.IDRange{Low: 4, End: 5}, 9, provider.IDRange{Low: 2, End: 3})
	if !c.Info().Can.Locate {
		s.Skip("the provider is no Locator")
	}
	low := int64(4)<<8 + 17
	want := func(what string, atMS int64, hosts ...string) {
		s.Helper()
		got := []string{}
		for _, r := range c.locate(low, atMS) {
			got = append(got, r.Meta["host"])
		}
		if !slices.Equal(got, append([]string{}, hosts...)) {
			s.Errorf("%s: %v held it, want %v", what, got, hosts)
		}
	}
	want("an empty store", s.now())
	acquire := func(service, host string) lease.Lease {
		s.Helper()
		return c.acquire(provider.AcquireRequest{Service: service, Meta: map[string]string{"host": host}})[0]
	}
	a := acquire("", "a")
	s.reach(a.ReservedUntil)
	b := acquire("", "b")
	s.reach(b.Created + 100)
	released := s.now()
	s.must(c.giveBack(b, released))
	s.reach(released + 1)
	coarse := acquire("coarse", "c")

	want("before everything", a.Created-1)
	want("its first millisecond", a.Created, "a")
	want("its last", a.Expired-1, "a")
	want("in quarantine", a.Expired)
	want("the next holder's", b.Created, "b")
	want("up to the release", released, "b")
	want("by a coarser layout", coarse.Created, "c")
	want("after everything", coarse.Expired)
	if got := c.locate(low+1<<9, a.Created); len(got) > 0 {
		s.Errorf("%v held the low bits of another slot", got)
	}
	for _, outside := range []int64{-1, 1 << 21, 1 << 40, 1<<63 - 1} {
		if got := c.locate(outside, a.Created); len(got) > 0 {
			s.Errorf("%v held the low bits %d", got, outside)
		}
	}
	r := c.locate(low, coarse.Created)[0]
	if r.Lease.ID != 2 || r.Lease.BitSeq != 9 || r.Service != "coarse" || r.Lease.Created != coarse.Created || r.Lease.Expired != coarse.Expired {
		s.Errorf("the record is %+v, want that of %v", r, coarse)
	}
}

// forget has the store lose everything.
func (s *suite) forget() {
	s.Helper()
	if s.store.Forget == nil {
		s.Skip("the store does not forget, or cannot be made to")
	}
	s.must(s.store.Forget())
}

// fenced acquires where a store that has forgotten must refuse.
func (c *client) fenced(service string) *provider.FencedError {
	c.suite.Helper()
	leases, err := c.try(provider.AcquireRequest{Service: service})
	var fenced *provider.FencedError
	if !errors.As(err, &fenced) {
		c.suite.Fatalf("Acquire gave %v and the error %v, want a FencedError", leases, err)
	}
	if fenced.Reason == "" {
		c.suite.Errorf("the fence does not say why")
	}
	return fenced
}

func testFence(s *suite) {
	c, d := s.open(ids(s.passing(), 0, 3)), s.open(ids(s.passing(), 0, 3))
	l := c.one()
	s.forget()
	first := d.fenced("")
	if first.UntilMS < l.ReservedUntil {
		s.Errorf("grants are refused until %d, and a lease that was lost is reserved until %d", first.UntilMS, l.ReservedUntil)
	}
	if again := c.fenced(""); again.UntilMS != first.UntilMS {
		s.Errorf("the fence ends at %d for one and at %d for another", first.UntilMS, again.UntilMS)
	}
	if s.store.SetClock != nil {
		s.reach(first.UntilMS - 1)
		c.fenced("")
	}
	s.reach(first.UntilMS)
	for range 4 { // among them the lost one's slot; the ledger compares
		c.one()
	}
}

// testFenceOfTheLongestTerm: what was lost may have been granted on other terms
// than those of whoever finds the store empty.
func testFenceOfTheLongestTerm(s *suite) {
	short := ids(s.passing(), 0, 3)
	long := short
	long.Term, long.Quarantine = 2*short.Term, 2*short.Quarantine
	for _, late := range []bool{false, true} {
		c, d := s.open(short), s.open(long)
		l := d.one()
		s.forget()
		until := c.fenced("").UntilMS
		if late {
			s.reach(until) // and one that comes only now is heard all the same
		}
		until = d.fenced("").UntilMS
		if until < l.ReservedUntil {
			s.Errorf("grants are refused until %d, and a lease that was lost is reserved until %d", until, l.ReservedUntil)
		}
		if again := c.fenced("").UntilMS; again != until {
			s.Errorf("the fence ends at %d for one and at %d for another", until, again)
		}
		s.reach(until)
		c.one()
		d.one()
		s.reach(s.now() + (long.Term + long.Quarantine).Milliseconds()) // the second round begins with nobody alive
	}
}

func testInit(s *suite) {
	terms := ids(s.passing(), 5, 5)
	s.forget()
	c := s.open(terms)
	if !c.Info().Can.Init {
		s.Fatalf("the store may forget, and the provider cannot be told that it is new")
	}
	c.fenced("")
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

// extend has the property test extend a lease.
func (c *checker) extend(t *rapid.T) {
	if len(c.model.grants) == 0 {
		t.Skip("nothing was granted")
	}
	g := c.drawGrant(t)
	terms := c.client.services.Of(g.service)
	before := c.now()
	longer, err := c.client.extend(g.service, g.lease)
	after := c.now()
	want := g.lease
	want.Expired = max(want.Expired, before+terms.Term.Milliseconds())
	want.ReservedUntil = max(want.ReservedUntil, want.Expired+terms.Quarantine.Milliseconds())
	if c.store.SetClock == nil {
		if after >= g.lease.Expired || err == nil {
			want = longer // which of two answers is right is a matter of milliseconds
		}
		if after >= g.lease.Expired {
			before = after
			if err == nil {
				before = g.lease.Expired - 1
			}
		}
	}
	if due := c.model.extend(g, before, want); !errors.Is(err, due) || err == nil && longer != want {
		t.Fatalf("Extend gave %+v and the error %v, want %+v and %v", longer, err, want, due)
	}
}
