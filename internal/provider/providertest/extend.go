package providertest

import (
	"errors"
	"maps"
	"strings"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// testExtendLastsInEveryLayout: a lease that was extended keeps slots of other
// layouts from being granted until its new end, and a release frees them.
func testExtendLastsInEveryLayout(s *suite) {
	for _, first := range []string{"", "coarse"} {
		second, at := "coarse", int64(len(first))
		if first == second {
			second = ""
		}
		c := s.layouts(s.passing(), provider.IDRange{Low: 2*at + 1, End: 2*at + 2}, 9, provider.IDRange{Low: at, End: at + 1})
		terms := s.needsExtender(c)
		l := c.acquire(provider.AcquireRequest{Service: first})[0]
		taken := func(until int64) {
			s.Helper()
			_, err := c.try(provider.AcquireRequest{Service: second})
			var full *provider.FullError
			if !errors.As(err, &full) || full.NextEndMS != until {
				s.Fatalf("%q beside %v: the error is %v, want a FullError until %d", second, l, err, until)
			}
		}
		taken(l.ReservedUntil) // and the other layout is known before the extension
		before := l.ReservedUntil
		s.reach(l.Created + terms.Term.Milliseconds()/2)
		l, err := c.extend(first, l)
		s.must(err)
		taken(l.ReservedUntil)
		s.reach(before) // where it would have been free
		if s.now() < l.Expired {
			l, err = c.extend(first, l)
			s.must(err)
		}
		taken(l.ReservedUntil)
		now := s.now()
		s.must(c.release(l, provider.ReleaseRequest{
			Service: first, ID: l.ID, BitSeq: l.BitSeq, TimestampMS: now, Signature: lease.Sign(l.Secret, l.ID, now),
		}))
		s.reach(now + 1)
		c.acquire(provider.AcquireRequest{Service: second})
	}
}

// testExtendAndRepeat: the request that the lease was granted to is answered
// with the lease as it is now.
func testExtendAndRepeat(s *suite) {
	c := s.open(ids(s.passing(), 5, 5))
	terms := s.needsExtender(c)
	req := provider.AcquireRequest{RequestID: provider.NewSecret()}
	l := c.acquire(req)[0]
	first := l
	s.reach(l.Created + terms.Term.Milliseconds()*3/4)
	l, err := c.extend("", l)
	s.must(err)
	s.reach(first.Expired)
	if s.now() >= l.Expired {
		return // a machine too slow for leases this short
	}
	if again := c.acquire(req)[0]; again != l {
		s.Errorf("the request repeated gave %+v, want %+v", again, l)
	}
	// A caller that did not hear of the first extension asks with what it knows, and
	// so does somebody who overheard it: the lease stays as it is.
	s.reach(s.now() + 10)
	if longer, err := c.extend("", first); (err != nil || longer != l) && s.now() < l.Expired {
		s.Errorf("extended again, %+v became %+v (%v)", l, longer, err)
	}
	if longer, err := c.extend("", l); (err != nil || longer.Expired <= l.Expired) && s.now() < l.Expired {
		s.Errorf("extended once more, %+v became %+v (%v)", l, longer, err)
	}
}

// testLocateExtended: a lease is located up to the end that it was given last.
func testLocateExtended(s *suite) {
	c := s.open(ids(s.passing(), 5, 5))
	terms := s.needsExtender(c)
	if !c.Info().Can.Locate {
		s.Skip("the provider is no Locator")
	}
	l := c.one()
	first := l
	s.reach(l.Created + terms.Term.Milliseconds()/2)
	l, err := c.extend("", l)
	s.must(err)
	low := int64(5)<<8 + 255
	for at, want := range map[int64]int{first.Created - 1: 0, first.Expired: 1, l.Expired - 1: 1, l.Expired: 0} {
		got := c.locate(low, at)
		if len(got) != want || want == 1 && (got[0].Lease.Expired != l.Expired || got[0].Lease.Created != first.Created) {
			s.Errorf("at %d of %+v: %+v, want %d", at, l, got, want)
		}
	}
}

func testCounters(s *suite) {
	terms := ids(s.passing(), 0, 1)
	c, d := s.open(terms), s.open(terms)
	if !c.Info().Can.Count {
		s.Skip("the provider does not count")
	}
	a, b := c.one(), d.one()
	c.full()
	d.full()
	extends := map[string]int64{"extend_ttl_count": 0, "extend_ttl_success": 0, "extend_ttl_ownership_error": 0, "extend_ttl_expire_warning": 0}
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
		extends = map[string]int64{"extend_ttl_count": 3, "extend_ttl_success": 1, "extend_ttl_ownership_error": 1, "extend_ttl_expire_warning": 1}
	}
	ctx, cancel := s.ctx()
	defer cancel()
	got, err := c.Counters(ctx, "")
	s.must(err)
	want := map[string]int64{
		"client_id_count": 2, "client_get_id_count": 4, "client_get_id_success": 2, "get_id_no_available_id": 2,
	}
	maps.Copy(want, extends)
	for _, name := range provider.CounterNames {
		if n, counted := got[name]; !counted || n != want[name] {
			s.Errorf("%s is %d (%v), want %d", name, n, counted, want[name])
		}
	}
}

// testCountersOfOthers: a lease server counts its clients, and not itself.
func testCountersOfOthers(s *suite) {
	c := s.open(ids(lasting(), 0, 9))
	if !c.Info().Can.Count || strings.HasPrefix(c.Info().Name, "http") {
		s.Skip("the provider does not count, or knows itself whose request it sends")
	}
	for i, client := range []provider.Client{
		provider.KnownClient, provider.NewClient, provider.KnownClient, provider.NewClient, provider.OwnClient, provider.OwnClient,
	} {
		c.acquire(provider.AcquireRequest{Client: client})
		ctx, cancel := s.ctx()
		counted, err := c.Counters(ctx, "")
		cancel()
		s.must(err)
		if want := []int64{0, 1, 1, 2, 3, 3}[i]; counted["client_id_count"] != want {
			s.Errorf("after %d acquires client_id_count is %d, want %d", i+1, counted["client_id_count"], want)
		}
	}
}

// locate has the property test ask who held a slot.
func (c *checker) locate(t *rapid.T) {
	if len(c.model.grants) == 0 {
		t.Skip("nothing was granted")
	}
	l := c.drawGrant(t).lease
	low := l.Slot().Start + rapid.Int64Range(0, l.Slot().Size()-1).Draw(t, "in the slot")
	at := rapid.SampledFrom([]int64{l.Created - 1, l.Created, l.Expired - 1, l.Expired, c.now()}).Draw(t, "time")
	held := map[int64]bool{} // by created: of two grants that overlap, only one holds the time
	for _, g := range c.model.grants {
		ended := g.lease.Expired
		if g.released {
			ended = min(ended, g.end)
		}
		if slot := g.lease.Slot(); slot.Start <= low && low < slot.End && g.lease.Created <= at && at < ended {
			held[g.lease.Created] = true
		}
	}
	found := c.client.locate(low, at)
	for _, r := range found {
		if !held[r.Lease.Created] {
			t.Fatalf("Locate(%d, %d) gave %+v, which did not hold it", low, at, r)
		}
	}
	if len(found) != len(held) {
		t.Fatalf("Locate(%d, %d) gave %+v, want %d grants", low, at, found, len(held))
	}
}
