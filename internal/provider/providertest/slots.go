package providertest

import (
	"slices"
	"strings"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

func testQuarantine(s *suite) {
	c := s.open(ids(s.passing(), 5, 5))
	l := c.one()
	if full := c.full(); full.NextEndMS != l.ReservedUntil {
		s.Errorf("the slot is free at %d, want %d", full.NextEndMS, l.ReservedUntil)
	}
	s.reach(l.Expired)
	if s.store.SetClock != nil {
		c.full()
		s.reach(l.ReservedUntil - 1)
		c.full()
	}
	s.reach(l.ReservedUntil)
	if next := c.one(); next.Created < l.ReservedUntil {
		s.Errorf("granted again at %d, before %d", next.Created, l.ReservedUntil)
	}
}

func testNoQuarantine(s *suite) {
	terms := ids(s.passing(), 5, 5)
	terms.Quarantine = 0
	c := s.open(terms)
	l := c.one()
	s.reach(l.Expired)
	if next := c.one(); next.Created < l.Expired {
		s.Errorf("granted again at %d, before %d", next.Created, l.Expired)
	}
}

func testFullPool(s *suite) {
	c := s.open(ids(lasting(), 10, 13))
	var leases []lease.Lease
	for range 4 {
		leases = append(leases, c.one())
		if s.store.SetClock != nil {
			s.set(s.now() + 1000)
		}
	}
	first := slices.MinFunc(leases, func(a, b lease.Lease) int { return int(a.ReservedUntil - b.ReservedUntil) })
	full := c.full()
	if full.Pool != provider.DefaultPool || full.Slots != 4 || full.NextEndMS != first.ReservedUntil {
		s.Errorf("FullError is %+v, want 4 slots and %d", full, first.ReservedUntil)
	}
	if text := full.Error(); !strings.Contains(text, "all 4 machine IDs") {
		s.Errorf("the error says %q", text)
	}
	ahead := s.now() + 20_000 // a release that shortens another one further
	s.must(c.giveBack(leases[2], ahead))
	if full := c.full(); full.NextEndMS != ahead+1 {
		s.Errorf("the next slot is free at %d, want %d", full.NextEndMS, ahead+1)
	}
}

func testPartialGrant(s *suite) {
	c := s.open(ids(lasting(), 10, 14))
	c.acquire(provider.AcquireRequest{ThroughputPerMS: 512})
	req := provider.AcquireRequest{ThroughputPerMS: 256 * 10, RequestID: provider.NewSecret()}
	rest := c.acquire(req)
	if len(rest) != 3 {
		s.Fatalf("%d leases were granted of 3 that were free", len(rest))
	}
	if again := c.acquire(req); len(again) != 3 {
		s.Errorf("the request repeated gave %d leases, want the same 3", len(again))
	}
	c.full()
}

func testIDRanges(s *suite) {
	low, high := s.open(ids(lasting(), 0, 3)), s.open(ids(lasting(), 4, 6))
	both := s.open(ids(lasting(), 2, 5))
	if got := low.acquire(provider.AcquireRequest{ThroughputPerMS: 256 * 3}); len(got) != 3 {
		s.Fatalf("%d leases from 0-3, want 3", len(got))
	}
	if got := high.acquire(provider.AcquireRequest{ThroughputPerMS: 256 * 9}); len(got) != 3 {
		s.Fatalf("%d leases from 4-6, want 3", len(got))
	}
	high.full()
	if got, err := both.try(provider.AcquireRequest{ThroughputPerMS: 256 * 9}); err == nil && len(got) > 1 {
		s.Errorf("ranges that overlap share their slots, and 2-5 has one free at most: %v", got)
	}
	if got, err := low.try(provider.AcquireRequest{ThroughputPerMS: 256 * 9}); err == nil && len(got) > 1 {
		s.Errorf("0-3 has one free at most: %v", got)
	}
	low.full()
	both.full()
	last := s.open(ids(lasting(), 8191, 8191))
	if l := last.one(); l.ID != 8191 {
		s.Errorf("the last machine ID is %d", l.ID)
	}
}

func testLongestFreeFirst(s *suite) {
	c := s.open(ids(lasting(), 20, 23))
	leases := map[int64]lease.Lease{}
	for range 4 {
		l := c.one()
		leases[l.ID] = l
	}
	// End in another order than the machine IDs'.
	base := s.now()
	for i, id := range []int64{22, 20, 23, 21} {
		s.must(c.giveBack(leases[id], base+int64(i)))
	}
	s.reach(base + 10)
	for _, want := range []int64{22, 20, 23, 21} {
		if l := c.one(); l.ID != want {
			s.Errorf("machine ID %d was granted, want %d, which has been free for longest", l.ID, want)
		}
	}
	c.full()
}

func testRoundRobin(s *suite) {
	c, d := s.open(ids(s.passing(), 40, 47)), s.open(ids(s.passing(), 40, 47))
	last := c.one()
	// Once around among those never granted, and on among those whose ends are
	// equal, where the clock stands still; else the longest free is the next too.
	for i := range 11 {
		if i == 7 {
			c.full()
			s.reach(last.ReservedUntil)
		}
		by := []*client{c, d}[i%2] // the cursor is the store's, not a process's
		l := by.one()
		if want := 40 + (last.ID-40+1)%8; l.ID != want {
			s.Errorf("machine ID %d follows %d, want %d", l.ID, last.ID, want)
		}
		last = l
	}
}

// layouts opens the pool with machine IDs of bit_seq 8 as the default service
// and with those of `coarse` bits as the service "coarse".
func (s *suite) layouts(t provider.Terms, fineIDs provider.IDRange, coarse int, coarseIDs provider.IDRange) *client {
	fine := t
	fine.IDs = fineIDs
	wide := t.WithBitSeq(coarse)
	wide.IDs = coarseIDs
	return s.openServices(provider.Services{Default: fine, Named: map[string]provider.Terms{"coarse": wide}})
}

func testCoarseAfterFine(s *suite) {
	// Machine ID 1 of (14, 8) lies in machine ID 0 of (13, 9).
	c := s.layouts(s.passing(), provider.IDRange{Low: 1, End: 2}, 9, provider.IDRange{Low: 0, End: 1})
	fine := c.one()
	_, err := c.try(provider.AcquireRequest{Service: "coarse"})
	full, ok := err.(*provider.FullError)
	if !ok || full.NextEndMS != fine.ReservedUntil {
		s.Fatalf("the error is %v, want a FullError until %d", err, fine.ReservedUntil)
	}
	s.reach(fine.ReservedUntil)
	coarse := c.acquire(provider.AcquireRequest{Service: "coarse"})[0]
	if coarse.ID != 0 || coarse.BitSeq != 9 || coarse.BitID != 13 {
		s.Errorf("the coarse lease is %v", coarse)
	}
}

func testFineAfterCoarse(s *suite) {
	c := s.layouts(lasting(), provider.IDRange{Low: 0, End: 4}, 9, provider.IDRange{Low: 0, End: 1})
	coarse := c.acquire(provider.AcquireRequest{Service: "coarse"})[0]
	for range 2 { // machine IDs 2 and 3 are free beside it
		if l := c.one(); l.ID != 2 && l.ID != 3 {
			s.Fatalf("%v was granted over %v", l, coarse)
		}
	}
	c.full()
	at := s.now()
	s.must(c.release(coarse, provider.ReleaseRequest{
		Service: "coarse", ID: 0, BitSeq: 9, TimestampMS: at, Signature: lease.Sign(coarse.Secret, 0, at),
	}))
	s.reach(at + 1)
	for range 2 {
		if l := c.one(); l.ID > 1 {
			s.Errorf("%v was granted, want machine ID 0 or 1", l)
		}
	}
	c.full()
	if _, err := c.try(provider.AcquireRequest{Service: "coarse"}); err == nil {
		s.Errorf("a coarse slot was granted over two fine ones")
	}
}

func testManyFineInOneCoarse(s *suite) {
	c := s.layouts(lasting(), provider.IDRange{Low: 0, End: 64}, 14, provider.IDRange{Low: 0, End: 1})
	var fine []lease.Lease
	for len(fine) < 64 {
		fine = append(fine, c.acquire(provider.AcquireRequest{ThroughputPerMS: 256 * 16})...)
	}
	coarse := provider.AcquireRequest{Service: "coarse"}
	base := s.now()
	for i, l := range fine {
		if _, err := c.try(coarse); err == nil {
			s.Fatalf("the coarse slot was granted over %d fine ones", len(fine)-i)
		}
		s.must(c.giveBack(l, base+int64(i%7)))
	}
	s.reach(base + 7)
	l := c.acquire(coarse)[0]
	c.full()
	at := s.now()
	s.must(c.release(l, provider.ReleaseRequest{Service: "coarse", ID: 0, BitSeq: 14, TimestampMS: at, Signature: lease.Sign(l.Secret, 0, at)}))
	s.reach(at + 1)
	c.acquire(provider.AcquireRequest{ThroughputPerMS: 256 * 64})
	if _, err := c.try(coarse); err == nil {
		s.Errorf("the coarse slot was granted over 64 fine ones")
	}
}

func testHugeLayout(s *suite) {
	terms := provider.DefaultTerms()
	terms.Timeline.BitTS, terms.BitID, terms.BitSeq = 33, 30, 0
	terms.Timeline.EpochMS = s.now() - 1000 // 33 bits are 99 days
	wide := terms.WithBitSeq(28)
	c := s.openServices(provider.Services{Default: terms, Named: map[string]provider.Terms{"coarse": wide}})
	fine := c.one()
	coarse := c.acquire(provider.AcquireRequest{Service: "coarse"})[0] // there are two, one of them free
	c.one()
	if full, err := c.try(provider.AcquireRequest{Service: "coarse"}); err == nil {
		s.Fatalf("%v was granted beside %v and %v", full, fine, coarse)
	}
}
