package providertest

import (
	"strings"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

func testReleaseFreesTheSlot(s *suite) {
	c := s.open(ids(lasting(), 5, 5))
	l := c.one()
	c.full()
	at := s.now()
	s.must(c.giveBack(l, at))
	if full := c.fullBefore(at + 1); full != nil && full.NextEndMS != at+1 {
		s.Errorf("the slot is free at %d, want %d", full.NextEndMS, at+1)
	}
	s.reach(at + 1)
	if next := c.one(); next.Created < at+1 {
		s.Errorf("the next holder's lease begins at %d, before %d", next.Created, at+1)
	}
}

// fullBefore acquires where nothing must be free until unixMS; nil when that
// time has come.
func (c *client) fullBefore(unixMS int64) *provider.FullError {
	c.suite.Helper()
	if c.suite.store.SetClock == nil && c.suite.now() >= unixMS-500 {
		return nil
	}
	return c.full()
}

func testReleaseBoundsTheEnd(s *suite) {
	c := s.open(ids(lasting(), 5, 5))

	// Not before the timestamp is past, even in the provider's future.
	l := c.one()
	ahead := s.now() + 20_000
	s.must(c.giveBack(l, ahead))
	if full := c.full(); full.NextEndMS != ahead+1 {
		s.Errorf("the slot is free at %d, want %d", full.NextEndMS, ahead+1)
	}
	s.must(c.giveBack(l, s.now())) // a second time, which changes nothing
	if full := c.full(); full.NextEndMS != ahead+1 {
		s.Errorf("after a second release the slot is free at %d, want %d", full.NextEndMS, ahead+1)
	}

	// And not before created, though the timestamp may be.
	d := s.open(ids(lasting(), 6, 6))
	l = d.one()
	s.must(d.giveBack(l, l.Created-20_000))
	d.one()
}

func testReleaseNeverLengthens(s *suite) {
	terms := ids(s.passing(), 5, 5)
	terms.Quarantine = 0
	c := s.open(terms)
	l := c.one()
	s.reach(l.Expired)
	// The slot is free and would be granted; a late release does not change it.
	s.must(c.giveBack(l, s.now()+20_000))
	c.one()
}

func testReleaseTwice(s *suite) {
	c := s.open(ids(lasting(), 5, 5))
	l := c.one()
	at := s.now()
	s.must(c.giveBack(l, at))
	s.must(c.giveBack(l, at))
	s.must(c.giveBack(l, at+20_000))
	// Nor does the provider's clock, which may have been set since: what took effect
	// is not refused.
	s.must(c.giveBack(l, at-2*provider.ReleaseWindow.Milliseconds()))
	s.must(c.giveBack(l, at+2*provider.ReleaseWindow.Milliseconds()))
	s.reach(at + 1)
	c.one()
}

func testReleaseForged(s *suite) {
	c := s.open(ids(lasting(), 5, 5))
	l := c.one()
	at := s.now()
	good := lease.Sign(l.Secret, l.ID, at)
	for name, signature := range map[string]string{
		"empty": "", "another secret": lease.Sign("x", l.ID, at), "another ID": lease.Sign(l.Secret, l.ID+1, at),
		"another time": lease.Sign(l.Secret, l.ID, at+1), "cut": good[:len(good)-2], "upper case": strings.ToUpper(good) + "Z",
	} {
		err := c.release(l, provider.ReleaseRequest{ID: l.ID, BitSeq: l.BitSeq, TimestampMS: at, Signature: signature})
		if err == nil {
			s.Errorf("%s: the release was accepted", name)
			continue
		}
		s.want(err, provider.ErrBadSignature)
	}
	c.full()
}

func testReleaseSkew(s *suite) {
	c := s.open(ids(lasting(), 5, 5))
	l := c.one()
	window := provider.ReleaseWindow.Milliseconds()
	const slack = 5000 // for clocks that run on meanwhile
	for _, off := range []int64{-window - slack, window + slack, -1 << 50, 1 << 50} {
		s.want(c.giveBack(l, s.now()+off), provider.ErrTimestampSkew)
	}
	if s.store.SetClock != nil {
		s.want(c.giveBack(l, s.now()-window-1), provider.ErrTimestampSkew)
		s.want(c.giveBack(l, s.now()+window+1), provider.ErrTimestampSkew)
	}
	c.full()
	s.must(c.giveBack(l, s.now()-window+slack))
}

// testReleaseAtEnd: a lease can be given back as of its end, from far before it,
// which spares the quarantine and nothing else.
func testReleaseAtEnd(s *suite) {
	c := s.open(ids(lasting(), 5, 5))
	l := c.one()
	atEnd := func(timestampMS int64, secret string) error {
		return c.release(l, provider.ReleaseRequest{
			ID: l.ID, BitSeq: l.BitSeq, TimestampMS: timestampMS, Signature: lease.Sign(secret, l.ID, timestampMS), AtEnd: true,
		})
	}
	s.want(atEnd(l.Expired, l.Secret), provider.ErrTimestampSkew)
	s.want(atEnd(l.Expired-2, l.Secret), provider.ErrTimestampSkew)
	s.want(atEnd(l.ReservedUntil-1, l.Secret), provider.ErrTimestampSkew)
	s.want(atEnd(l.Expired-1, "forged"), provider.ErrBadSignature)
	s.want(c.giveBack(l, l.Expired-1), provider.ErrTimestampSkew) // who does not say so is held to the window
	if full := c.full(); full.NextEndMS != l.ReservedUntil {
		s.Errorf("after refusals the slot is free at %d, want %d", full.NextEndMS, l.ReservedUntil)
	}
	for range 2 { // repeated, it changes nothing
		s.must(atEnd(l.Expired-1, l.Secret))
		if full := c.full(); full.NextEndMS != l.Expired {
			s.Errorf("the slot is free at %d, want the lease's end %d", full.NextEndMS, l.Expired)
		}
	}
	if s.store.SetClock != nil {
		s.reach(l.Expired)
		c.one()
	}
}

func testReleaseNotFound(s *suite) {
	c := s.open(ids(lasting(), 5, 5))
	absent := func(id int64, bitSeq int) {
		s.Helper()
		at := s.now()
		err := c.release(lease.Lease{}, provider.ReleaseRequest{ID: id, BitSeq: bitSeq, TimestampMS: at, Signature: lease.Sign("x", id, at)})
		s.want(err, provider.ErrNotFound)
	}
	absent(5, 8) // before there is a pool
	c.one()
	absent(6, 8)
	absent(5, 9)
	absent(6, provider.AnyBitSeq)
	for _, id := range []int64{-1, 1 << 13, 1 << 40, 1<<63 - 1, -1 << 63} {
		absent(id, 8)
		absent(id, provider.AnyBitSeq)
	}
	absent(5, 63)
	absent(5, 1000)
	absent(5, -2)
}

func testReleaseWithoutBitSeq(s *suite) {
	fine, coarse := lasting(), lasting().WithBitSeq(9)
	c := s.openServices(provider.Services{Default: ids(fine, 5, 5), Named: map[string]provider.Terms{"coarse": ids(coarse, 5, 5)}})
	a := c.one()
	b := c.acquire(provider.AcquireRequest{Service: "coarse"})[0]
	at := s.now()
	for _, l := range []lease.Lease{a, b} {
		s.must(c.release(l, provider.ReleaseRequest{
			ID: 5, BitSeq: provider.AnyBitSeq, TimestampMS: at, Signature: lease.Sign(l.Secret, 5, at),
		}))
	}
	err := c.release(a, provider.ReleaseRequest{ID: 5, BitSeq: provider.AnyBitSeq, TimestampMS: at, Signature: "00"})
	s.want(err, provider.ErrBadSignature)
	s.reach(at + 1)
	c.one()
	c.acquire(provider.AcquireRequest{Service: "coarse"})
}

func testReleaseAfterTakeover(s *suite) {
	c := s.open(ids(s.passing(), 5, 5))
	l := c.one()
	s.reach(l.ReservedUntil)
	next := c.one()
	s.want(c.giveBack(l, s.now()), provider.ErrBadSignature)
	if s.store.SetClock != nil {
		if full := c.full(); full.NextEndMS != next.ReservedUntil {
			s.Errorf("the slot is free at %d, want %d", full.NextEndMS, next.ReservedUntil)
		}
	}
}
