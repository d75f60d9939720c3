package providertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

func testInvalidRequests(s *suite) {
	c := s.open(lasting())
	_, err := c.try(provider.AcquireRequest{RequestID: "a\x00b"}) // which not every store can hold
	s.want(err, provider.ErrInvalid)
	c.acquire(provider.AcquireRequest{
		Service: "サービス ' \" \n", RequestID: strings.Repeat("r", provider.MaxNameBytes),
		Meta: map[string]string{"host": "ホスト", "": "", "quote": `'"\`},
	})
}

// testReopen: a closed provider does nothing, and the store keeps its grants.
func testReopen(s *suite) {
	terms := ids(lasting(), 0, 0)
	c := s.open(terms)
	l := c.one()
	s.must(c.Close())
	s.must(c.Close()) // twice is no error
	if _, err := c.try(provider.AcquireRequest{}); err == nil {
		s.Errorf("a closed provider granted a lease")
	}
	s.want(c.giveBack(l, s.now()), provider.ErrNotSent)
	again := s.open(terms)
	again.full()
	s.must(again.giveBack(l, s.now()))
}

// testContextEnded: a call that cannot begin has changed nothing, and says so.
func testContextEnded(s *suite) {
	c := s.open(ids(lasting(), 5, 5))
	l := c.one()
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancelExpired := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancelExpired()
	for _, test := range []struct {
		ctx  context.Context
		want error
	}{{cancelled, context.Canceled}, {expired, context.DeadlineExceeded}} {
		_, err := c.Acquire(test.ctx, provider.AcquireRequest{})
		s.want(err, provider.ErrNotSent)
		s.want(err, test.want)
		err = c.Release(test.ctx, SignedRelease(l, s.now()))
		s.want(err, provider.ErrNotSent)
		s.want(err, test.want)
		_, err = provider.Verify(test.ctx, c, "", []lease.Lease{l})
		s.want(err, test.want)
		_, err = c.List(test.ctx, "")
		s.want(err, test.want)
	}
	c.full()
	// An answer of the provider is no such error.
	if _, err := c.try(provider.AcquireRequest{}); errors.Is(err, provider.ErrNotSent) {
		s.Errorf("a full pool: %v", err)
	}
	if err := c.Release(context.Background(), provider.ReleaseRequest{
		ID: l.ID, BitSeq: l.BitSeq, TimestampMS: s.now(), Signature: "00",
	}); errors.Is(err, provider.ErrNotSent) {
		s.Errorf("a forged release: %v", err)
	}
	s.must(c.giveBack(l, s.now()))
}

func testPools(s *suite) {
	terms := ids(lasting(), 7, 7)
	other := terms
	other.Pool = "other"
	c := s.openServices(provider.Services{Default: terms, Named: map[string]provider.Terms{"b": other}})
	a := c.one()
	b := c.acquire(provider.AcquireRequest{Service: "b"})[0]
	if a.ID != 7 || b.ID != 7 {
		s.Errorf("machine IDs are %d and %d, want 7 in both pools", a.ID, b.ID)
	}
	c.full() // seed 000-6.2-3
	s.must(c.giveBackOf("b", b, s.now()))
	if full := c.full(); full.Pool != terms.Pool || full.Slots != 1 {
		s.Errorf("FullError is %+v", full)
	}
}

func testTimelineContradiction(s *suite) {
	s.open(lasting()).one()
	epoch := lasting()
	epoch.Timeline.EpochMS += 1000
	bits := lasting()
	bits.Timeline.BitTS, bits.BitID = bits.Timeline.BitTS+1, bits.BitID-1
	for _, terms := range []provider.Terms{epoch, bits} {
		p, err := s.store.Open(provider.Services{Default: terms})
		if err == nil { // some providers notice it at the first use only
			_, err = p.Acquire(context.Background(), provider.AcquireRequest{})
			s.must(p.Close())
		}
		s.want(err, provider.ErrInvalid)
		if text := err.Error(); !strings.Contains(text, "2026-01-01") || !strings.Contains(text, "bit_ts 41") {
			s.Errorf("the error does not name what is recorded: %v", err)
		}
	}
}

// testRequest: a request ID belongs to its service, whichever provider it is sent to.
func testRequest(s *suite) {
	c, d := s.open(lasting()), s.open(lasting())
	req := provider.AcquireRequest{ThroughputPerMS: 700, RequestID: provider.NewSecret(), Client: provider.KnownClient}
	first := c.acquire(req)
	if again := d.acquire(req); !slices.Equal(again, first) {
		s.Fatalf("the same request gave %v, then %v", first, again)
	}
	for _, other := range []provider.AcquireRequest{{Service: "another", RequestID: req.RequestID, Client: provider.KnownClient}, {}, {}} {
		if l := c.acquire(other)[0]; l.Key() == first[0].Key() {
			s.Errorf("%+v was given the same lease", other)
		}
	}
	s.must(c.giveBack(first[1], s.now()))
	_, err := d.try(req)
	s.want(err, provider.ErrConflict)
}

func testRequestConcurrently(s *suite) {
	c := s.open(lasting())
	req := provider.AcquireRequest{ThroughputPerMS: 512, RequestID: provider.NewSecret(), Client: provider.KnownClient}
	answers := make([][]lease.Lease, 8)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			leases, err := c.try(req)
			if err != nil {
				s.Errorf("Acquire: %v", err)
			}
			answers[i] = leases
		})
	}
	wg.Wait()
	for _, a := range answers {
		if len(a) != 2 || !slices.Equal(a, answers[0]) {
			s.Fatalf("one request was answered with different leases: %v, %v", answers[0], a)
		}
	}
}

// testNoSuchSlot names slots that were never granted, and some that no pool has.
func testNoSuchSlot(s *suite) {
	c := s.open(ids(lasting(), 5, 5))
	absent := func(id int64, bitSeq int) {
		s.Helper()
		l := lease.Lease{ID: id, BitSeq: bitSeq, Created: s.now(), Expired: s.now() + 1, Secret: "x"}
		s.want(c.giveBack(l, s.now()), provider.ErrNotFound)
		if bitSeq == provider.AnyBitSeq {
			return
		}
		_, err := c.extend("", l)
		s.want(err, provider.ErrNotFound)
		ctx, cancel := s.ctx()
		defer cancel()
		if lost, err := provider.Verify(ctx, c.Provider, "", []lease.Lease{l}); err != nil || len(lost) != 1 {
			s.Errorf("of %v are lost %v (%v)", l, lost, err)
		}
	}
	absent(5, 8) // before there is a pool
	l := c.one()
	absent(6, 8)
	absent(6, provider.AnyBitSeq)
	for _, id := range []int64{-1, 1 << 13, 1 << 40, 1<<63 - 1, -1 << 63} {
		absent(id, 8)
		absent(id, provider.AnyBitSeq)
	}
	for _, bitSeq := range []int{9, 63, 1000, -2} {
		absent(5, bitSeq)
	}
	for _, low := range []int64{-1, l.Slot().End, 1 << 21, 1 << 40, 1<<63 - 1} {
		if got := c.locate(low, l.Created); len(got) > 0 {
			s.Errorf("%v held the low bits %d", got, low)
		}
	}
}

// layouts opens the pool with machine IDs of bit_seq 8 as the default service, and with
// those of `coarse` bits as the service "coarse".
func (s *suite) layouts(t provider.Terms, fineIDs provider.IDRange, coarse int, coarseIDs provider.IDRange) *client {
	if s.store.OneLayout {
		coarse = t.BitSeq
	}
	fine, wide := t, t.WithBitSeq(coarse)
	fine.IDs, wide.IDs = fineIDs, coarseIDs
	return s.openServices(provider.Services{Default: fine, Named: map[string]provider.Terms{"coarse": wide}})
}

func testHugeLayout(s *suite) {
	terms := provider.DefaultTerms()
	terms.Timeline.BitTS, terms.BitID, terms.BitSeq = 33, 30, 0
	terms.Timeline.EpochMS = s.now() - 1000 // 33 bits are 99 days
	if s.store.OneLayout {
		s.open(terms).one()
		return
	}
	wide := ids(terms.WithBitSeq(4), 1<<25-2, 1<<25-1) // the last two
	narrow := ids(terms, 1<<29-32, 1<<29-17)           // all under the first of them
	c := s.openServices(provider.Services{Default: terms, Named: map[string]provider.Terms{"coarse": wide, "narrow": narrow}})
	c.one()
	fine := c.acquire(provider.AcquireRequest{Service: "narrow"})[0]
	coarse := c.acquire(provider.AcquireRequest{Service: "coarse"})[0]
	if full, err := c.try(provider.AcquireRequest{Service: "coarse"}); err == nil {
		s.Fatalf("%v was granted beside %v and %v", full, fine, coarse)
	}
}

// testConcurrency has many goroutines on several providers acquire and release in a
// small space of slots of two layouts. The ledger says at the end whether any two
// overlapped.
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
				service := []string{"", "coarse"}[random.IntN(2)]
				// Seeds 000-6.2-1 and 001-13.
				leases, err := c.try(provider.AcquireRequest{ThroughputPerMS: random.Int64N(800), Service: service})
				var full *provider.FullError
				switch {
				case errors.As(err, &full):
					s.passes(5)
				case err != nil:
					s.Errorf("Acquire: %v", err)
					return
				}
				grants.Add(int64(len(leases)))
				for _, l := range leases {
					if random.IntN(2) == 0 {
						continue
					}
					// The lease may have ended meanwhile, and the slot be another caller's.
					if err := c.giveBackOf(service, l, s.now()+random.Int64N(5)); err != nil && !errors.Is(err, provider.ErrBadSignature) {
						s.Errorf("Release: %v", err)
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

func testClockOutsideTimeline(s *suite) {
	if s.store.SetClock == nil {
		s.Skip("the store's clock cannot be set")
	}
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

// testFenceByHand: the store is fenced and has kept its records. It neither repeats nor extends a
// lease: while its clock was ahead, it may have granted the slot to another, and forgotten that.
func testFenceByHand(s *suite) {
	terms := ids(s.passing(), 0, 3)
	c := s.open(terms)
	l, other := c.acquire(provider.AcquireRequest{RequestID: "r"})[0], c.one()
	ctx, cancel := s.ctx()
	defer cancel()
	until, err := c.Provider.Fence(ctx)
	if errors.Is(err, errors.ErrUnsupported) {
		s.Skip("it is fenced where its server keeps it")
	}
	s.must(err)
	refused := func(err error) {
		s.Helper()
		if fenced, ok := errors.AsType[*provider.FencedError](err); !ok || fenced.Reason == "" {
			s.Fatalf("the error is %v, want a FencedError with a reason", err)
		}
	}
	_, err = c.try(provider.AcquireRequest{})
	refused(err)
	_, err = c.try(provider.AcquireRequest{RequestID: "r"})
	refused(err)
	_, err = c.extend("", l)
	refused(err)
	if lost, err := provider.Verify(ctx, c.Provider, "", []lease.Lease{l}); err != nil || len(lost) > 0 {
		s.Errorf("while the store is fenced %v is lost: %v, %v", l, lost, err)
	}
	s.must(c.giveBack(other, s.now()))
	s.reach(until.UntilMS)
	_, err = c.extend("", l) // the fence has outlasted it
	s.want(err, provider.ErrConflict)
}
