package providertest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

func testGrantFields(s *suite) {
	c := s.open(lasting())
	before := s.now()
	a, b := c.one(), c.one() // checkLease has looked at all but the clock
	if s.store.SetClock != nil && (a.Created != before || b.Created != before) {
		s.Errorf("created is %d and %d at %d", a.Created, b.Created, before)
	}
	if a.ID == b.ID || a.Secret == b.Secret {
		s.Errorf("two grants share a machine ID or a secret: %v, %v", a, b)
	}
	if len(a.Secret) < 32 {
		s.Errorf("the secret has %d characters, fewer than 128 bits in hex", len(a.Secret))
	}
	info := c.Info()
	if info.Name == "" || info.URL == "" || info.Scope == "" {
		s.Errorf("Info leaves something out: %+v", info)
	}
	if !info.Coordinated {
		s.Errorf("Info says that the provider does not coordinate: %+v", info)
	}
}

func testThroughputToLeases(s *suite) {
	c := s.open(lasting())
	for _, test := range []struct {
		throughput int64
		leases     int
	}{
		{math.MinInt64, 1}, {-1, 1}, {0, 1}, {1, 1}, {255, 1}, {256, 1}, {257, 2}, {1024, 4}, {1025, 5},
	} {
		if got := c.acquire(provider.AcquireRequest{ThroughputPerMS: test.throughput}); len(got) != test.leases {
			s.Errorf("throughput %d gave %d leases, want %d", test.throughput, len(got), test.leases)
		}
	}
}

func testMaxLeasesPerAcquire(s *suite) {
	terms := lasting()
	terms.MaxLeasesPerAcquire = 3
	c := s.open(terms)
	for _, throughput := range []int64{1000, math.MaxInt64} {
		if got := c.acquire(provider.AcquireRequest{ThroughputPerMS: throughput}); len(got) != 3 {
			s.Errorf("throughput %d gave %d leases, want 3", throughput, len(got))
		}
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

func testReopen(s *suite) {
	terms := ids(lasting(), 0, 0)
	c := s.open(terms)
	l := c.one()
	s.must(c.Close())
	s.must(c.Close()) // twice is no error
	if _, err := c.try(provider.AcquireRequest{}); err == nil {
		s.Errorf("a closed provider granted a lease")
	}
	if err := c.giveBack(l, s.now()); err == nil {
		s.Errorf("a closed provider took a lease back")
	}
	again := s.open(terms)
	again.full()
	s.must(again.giveBack(l, s.now()))
}

func testContextEnded(s *suite) {
	c := s.open(lasting())
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
		s.want(err, test.want)
		now := s.now()
		err = c.Release(test.ctx, provider.ReleaseRequest{ID: l.ID, BitSeq: l.BitSeq, TimestampMS: now, Signature: lease.Sign(l.Secret, l.ID, now)})
		s.want(err, test.want)
		if c.Info().Can.Verify {
			_, err := provider.Verify(test.ctx, c, "", []lease.Lease{l})
			s.want(err, test.want)
		}
		if c.Info().Can.List {
			_, err := c.List(test.ctx, "")
			s.want(err, test.want)
		}
	}
	c.one() // and it still works
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
	c.full()
	now := s.now()
	s.must(c.release(b, provider.ReleaseRequest{Service: "b", ID: 7, BitSeq: b.BitSeq, TimestampMS: now, Signature: lease.Sign(b.Secret, 7, now)}))
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
		if err == nil { // it may show itself later only
			_, err = p.Acquire(context.Background(), provider.AcquireRequest{})
			s.must(p.Close())
		}
		s.want(err, provider.ErrInvalid)
		if text := err.Error(); !strings.Contains(text, "2026-01-01") || !strings.Contains(text, "bit_ts 41") {
			s.Errorf("the error does not name what is recorded: %v", err)
		}
	}
}

func testRequestReplay(s *suite) {
	c := s.open(lasting())
	d := s.open(lasting())
	req := provider.AcquireRequest{ThroughputPerMS: 700, RequestID: provider.NewSecret()}
	first := c.acquire(req)
	for range 3 {
		// granted() has compared each lease with the first answer's.
		if again := d.acquire(req); len(again) != len(first) || again[0].Secret != first[0].Secret {
			s.Fatalf("the same request gave %v, then %v", first, again)
		}
	}
	req.Service = "another"
	if other := c.acquire(req); other[0].Key() == first[0].Key() {
		s.Errorf("another service was given the same lease")
	}
	if other := c.acquire(provider.AcquireRequest{}); other[0].Key() == first[0].Key() {
		s.Errorf("a request without ID was given the same lease")
	}
}

func testRequestConflictAfterRelease(s *suite) {
	c := s.open(lasting())
	req := provider.AcquireRequest{ThroughputPerMS: 512, RequestID: provider.NewSecret()}
	leases := c.acquire(req)
	s.must(c.giveBack(leases[1], s.now()))
	_, err := c.try(req)
	s.want(err, provider.ErrConflict)
}

func testRequestConflictAfterEnd(s *suite) {
	c := s.open(ids(s.passing(), 3, 3))
	req := provider.AcquireRequest{RequestID: provider.NewSecret()}
	l := c.acquire(req)[0]
	s.reach(l.Expired)
	_, err := c.try(req)
	s.want(err, provider.ErrConflict)
	s.reach(l.ReservedUntil)
	_, err = c.try(req)
	s.want(err, provider.ErrConflict)
	c.one() // somebody else's now
	_, err = c.try(req)
	s.want(err, provider.ErrConflict)
}

func testRequestConcurrently(s *suite) {
	clients := []*client{s.open(lasting()), s.open(lasting())}
	req := provider.AcquireRequest{ThroughputPerMS: 512, RequestID: provider.NewSecret()}
	answers := make([][]lease.Lease, 8)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			leases, err := clients[i%2].try(req)
			if err != nil {
				s.Errorf("Acquire: %v", err)
				return
			}
			answers[i] = leases
		})
	}
	wg.Wait()
	for _, a := range answers {
		if len(a) != 2 || a[0] != answers[0][0] || a[1] != answers[0][1] {
			s.Fatalf("one request was answered with different leases: %v, %v", answers[0], a)
		}
	}
}
