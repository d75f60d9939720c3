package providertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// Seed 000-4.4-1.
func testGrantFields(s *suite) {
	c := s.open(lasting())
	before := s.now()
	a, b := c.one(), c.one() // the ledger checks the rest
	if s.store.SetClock != nil && (a.Created != before || b.Created != before) {
		s.Errorf("created is %d and %d at %d", a.Created, b.Created, before)
	}
	if a.ID == b.ID || a.Secret == b.Secret {
		s.Errorf("two grants share a machine ID or a secret: %v, %v", a, b)
	}
	if len(a.Secret) < 32 {
		s.Errorf("the secret has %d characters, fewer than 128 bits in hex", len(a.Secret))
	}
	if info := c.Info(); info.Name == "" || info.URL == "" || info.Scope == "" || !info.Coordinated {
		s.Errorf("Info leaves something out: %+v", info)
	}
}

func testInvalidRequests(s *suite) {
	c := s.open(lasting())
	invalid := func(req provider.AcquireRequest, field string) {
		s.Helper()
		if _, err := c.try(req); !errors.Is(err, provider.ErrInvalid) || !strings.Contains(err.Error(), field) {
			s.Errorf("%+v: the error is %v, want ErrInvalid about the %s", req, err, field)
		}
	}
	invalid(provider.AcquireRequest{Meta: map[string]string{"k": strings.Repeat("v", provider.MaxMetaBytes)}}, "meta")
	for _, text := range []string{strings.Repeat("r", provider.MaxNameBytes+1), "a\x00b", "a\xffb"} {
		invalid(provider.AcquireRequest{RequestID: text}, "request ID")
		invalid(provider.AcquireRequest{Service: text}, "service")
	}
	for _, text := range []string{"a\x00b", "a\xffb"} { // which not every store can hold
		invalid(provider.AcquireRequest{Meta: map[string]string{"k": text}}, `meta "k"`)
		invalid(provider.AcquireRequest{Meta: map[string]string{text: "v"}}, fmt.Sprintf("meta %q", text))
	}
	c.acquire(provider.AcquireRequest{
		Service: "サービス ' \" \n", RequestID: strings.Repeat("r", provider.MaxNameBytes),
		Meta: map[string]string{"host": "ホスト", "": "", "quote": `'"\`},
	})
}

// testReopen: a closed provider does nothing, and the store keeps what it granted.
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
// Seed 003-3.2-5.
func testContextEnded(s *suite) {
	c := s.open(ids(lasting(), 5, 5))
	l := c.one()
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancelExpired := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancelExpired()
	can := c.Info().Can
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
		if can.Verify {
			_, err := provider.Verify(test.ctx, c, "", []lease.Lease{l})
			s.want(err, test.want)
		}
		if can.List {
			_, err := c.List(test.ctx, "")
			s.want(err, test.want)
		}
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

// Seeds 000-6.2-3 and 000-6.4-1.
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
	c.full()
	s.must(c.giveBackOf("b", b, s.now()))
	if full := c.full(); full.Pool != terms.Pool || full.Slots != 1 {
		s.Errorf("FullError is %+v", full)
	}
}

// testDeadHolder: a machine ID that nothing gives back is granted again when the lease and its
// quarantine are over, and not before.
// Seeds 000-4.4-4, 000-A.12-1 and 001-10.
func testDeadHolder(s *suite) {
	if s.store.SetClock == nil {
		s.Skip("the clock cannot be set")
	}
	terms := ids(lasting(), 5, 5)
	dead := s.open(terms).one()
	if want := dead.Created + (terms.Term + terms.Quarantine).Milliseconds(); dead.ReservedUntil != want {
		s.Errorf("the machine ID is reserved until %d, want %d", dead.ReservedUntil, want)
	}
	c := s.open(terms)
	s.reach(dead.ReservedUntil - 1)
	if full := c.full(); full.NextEndMS != dead.ReservedUntil {
		s.Errorf("the machine ID is free at %d, want %d", full.NextEndMS, dead.ReservedUntil)
	}
	s.reach(dead.ReservedUntil)
	if next := c.one(); next.ID != dead.ID || next.Secret == dead.Secret {
		s.Errorf("after %v comes %v", dead, next)
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
	clients := []*client{s.open(lasting()), s.open(lasting())}
	if s.store.ForgetsRequests {
		clients[1] = clients[0]
	}
	req := provider.AcquireRequest{ThroughputPerMS: 512, RequestID: provider.NewSecret(), Client: provider.KnownClient}
	answers := make([][]lease.Lease, 8)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			leases, err := clients[i%2].try(req)
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

// Seeds 000-4.5-2 and 000-7.2-2.
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
		if !errors.Is(err, provider.ErrBadSignature) {
			s.Errorf("%s: the error is %v", name, err)
		}
	}
	c.full()
}

func testReleaseNotFound(s *suite) {
	c := s.open(ids(lasting(), 5, 5))
	absent := func(id int64, bitSeq int) {
		s.Helper()
		s.want(c.giveBack(lease.Lease{ID: id, BitSeq: bitSeq, Secret: "x"}, s.now()), provider.ErrNotFound)
	}
	absent(5, 8) // before there is a pool
	c.one()
	absent(6, 8)
	absent(6, provider.AnyBitSeq)
	for _, id := range []int64{-1, 1 << 13, 1 << 40, 1<<63 - 1, -1 << 63} {
		absent(id, 8)
		absent(id, provider.AnyBitSeq)
	}
	for _, bitSeq := range []int{9, 63, 1000, -2} {
		absent(5, bitSeq)
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

// Seed 000-4.2-5.
func testManyFineInOneCoarse(s *suite) {
	if s.store.OneLayout {
		s.Skip("a pool has one layout")
	}
	c := s.layouts(lasting(), provider.IDRange{Low: 0, End: 16}, 12, provider.IDRange{Low: 0, End: 1})
	var fine []lease.Lease
	for len(fine) < 16 {
		fine = append(fine, c.acquire(provider.AcquireRequest{ThroughputPerMS: 256 * 4})...)
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
	s.must(c.giveBackOf("coarse", l, at))
	s.reach(at + 1)
	c.acquire(provider.AcquireRequest{ThroughputPerMS: 256 * 16})
	if _, err := c.try(coarse); err == nil {
		s.Errorf("the coarse slot was granted over 16 fine ones")
	}
}

// Seed 000-6.3-1.
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
// Seeds 000-6.2-1 and 001-13.
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

// testCrash ends an acquire at each step; the same request then comes again, as from a
// keeper that does not know what became of the first.
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
	// Each request has taken one slot, whether its first attempt was lost before the grant
	// or after, so that one is left.
	c := s.open(terms)
	c.one()
	c.full()
}
