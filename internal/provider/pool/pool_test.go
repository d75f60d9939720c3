package pool

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { await.Main(m) }

const begin = 1_800_000_000_000

// stage is records in memory that show their writes, which can fail.
type stage struct {
	*testing.T
	record.Store
	clock  atomic.Int64
	wrote  []record.Write
	lists  int
	before func() error // a change fails with it before its rule runs; nil: none
	after  func() error // after it was carried out
	listed func()       // after a list; nil: nothing
}

func newStage(t *testing.T) *stage {
	s := &stage{T: t}
	s.clock.Store(begin)
	s.Store = memory.NewArea(AreaOf(provider.Services{Default: provider.DefaultTerms()}), s.clock.Load)
	return s
}

func (s *stage) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	if s.before != nil {
		if err := s.before(); err != nil {
			return 0, err
		}
	}
	at, err := s.Store.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		writes, err := rule(v)
		s.wrote = append(s.wrote, writes...)
		return writes, err
	})
	if err == nil && s.after != nil {
		err = s.after()
	}
	return at, err
}

func (s *stage) List(ctx context.Context, prefix, after string, limit int) ([]record.Head, error) {
	s.lists++
	page, err := s.Store.List(ctx, prefix, after, limit)
	if s.listed != nil {
		s.listed()
	}
	return page, err
}

// open opens a provider on these terms.
func (s *stage) open(t provider.Terms) *Provider {
	s.Helper()
	return s.openServices(provider.Services{Default: t})
}

func (s *stage) openServices(services provider.Services) *Provider {
	s.Helper()
	p, err := New(Config{Records: s, Services: services, Info: provider.Info{Name: "test", URL: "test:store"}})
	must.Succeed(s, err)
	return p
}

func within(low, high int64) provider.Terms {
	t := provider.DefaultTerms()
	t.IDs = provider.IDRange{Low: low, End: high + 1}
	return t
}

func (s *stage) acquire(p *Provider, req provider.AcquireRequest) []lease.Lease {
	s.Helper()
	leases, err := p.Acquire(s.Context(), req)
	must.Succeed(s, err)
	return leases
}

func release(l lease.Lease, atMS int64) provider.ReleaseRequest {
	return provider.ReleaseRequest{ID: l.ID, BitSeq: l.BitSeq, TimestampMS: atMS, Signature: lease.Sign(l.Secret, l.ID, atMS)}
}

// A pool with more blocks than an acquire looks at is granted to its last machine ID, and is then
// full until the first one is free.
func TestLastOfManyBlocks(t *testing.T) {
	s := newStage(t)
	terms := within(7, 7+20*16)
	p := s.open(terms)
	seen := map[int64]bool{}
	for range 20*16 + 1 {
		l := s.acquire(p, provider.AcquireRequest{})[0]
		if seen[l.ID] {
			t.Fatalf("machine ID %d was granted twice", l.ID)
		}
		seen[l.ID] = true
		s.clock.Add(1)
	}
	var full *provider.FullError
	if _, err := p.Acquire(t.Context(), provider.AcquireRequest{}); !errors.As(err, &full) || full.NextEndMS != begin+terms.LongestMS() || full.Slots != 321 {
		t.Errorf("the last but one: %v", err)
	}
	lists := s.lists
	if _, err := p.Acquire(t.Context(), provider.AcquireRequest{}); !errors.As(err, &full) || s.lists > lists+1 {
		t.Errorf("%v, after %d more lists", err, s.lists-lists)
	}
	s.clock.Store(begin + terms.LongestMS())
	s.acquire(p, provider.AcquireRequest{})
}

// An acquire of many leases takes many changes. What fails in between is carried on by the same
// request, and the answer stays the same.
func TestManyLeasesOfOneRequest(t *testing.T) {
	s := newStage(t)
	p, other := s.open(provider.DefaultTerms()), s.open(provider.DefaultTerms())
	req := provider.AcquireRequest{RequestID: "r", ThroughputPerMS: 200 * 256}
	broken := errors.New("broken")
	s.failing(3, broken)
	if _, err := p.Acquire(t.Context(), req); !errors.Is(err, broken) {
		t.Fatalf("the error is %v", err)
	}
	leases := s.acquire(other, req)
	if again := s.acquire(p, provider.AcquireRequest{RequestID: "r"}); len(leases) != 200 || !slices.Equal(again, leases) {
		t.Errorf("%d leases, and again %d", len(leases), len(again))
	}
	records, err := p.List(t.Context(), "")
	if err != nil || len(records) != 200 {
		t.Errorf("%d records (%v), want 200", len(records), err)
	}
	must.Succeed(t, p.Release(t.Context(), release(leases[7], begin)))
	if _, err := p.Acquire(t.Context(), req); !errors.Is(err, provider.ErrConflict) {
		t.Errorf("with a lease released: %v", err)
	}
	s.clock.Add(1)
	taken := s.acquire(s.open(within(leases[7].ID, leases[7].ID)), provider.AcquireRequest{})[0]
	if _, err := p.Acquire(t.Context(), req); !errors.Is(err, provider.ErrConflict) || taken.ID != leases[7].ID {
		t.Errorf("with a lease that %+v has followed: %v", taken, err)
	}
}

// Nothing that is written has the secret of a lease.
func TestSecretsAreNotRecorded(t *testing.T) {
	s := newStage(t)
	p := s.open(within(0, 3))
	l := s.acquire(p, provider.AcquireRequest{RequestID: "r"})[0]
	longer, err := provider.Extend(t.Context(), p, "", l)
	must.Succeed(t, err)
	_, err = provider.Verify(t.Context(), p, "", []lease.Lease{l})
	must.Succeed(t, errors.Join(err, p.Release(t.Context(), release(longer, begin))))
	secret, err := hex.DecodeString(l.Secret)
	must.Succeed(t, err)
	for _, w := range s.wrote {
		// Seed 000-6.1-1.
		if bytes.Contains(w.Value, secret) || bytes.Contains(w.Value, []byte(l.Secret)) || strings.Contains(w.Key, l.Secret) {
			t.Errorf("%s has the secret", w.Key)
		}
	}
	if len(s.wrote) < 5 {
		t.Errorf("only %d writes were seen", len(s.wrote))
	}
}

// A release that no rule has decided is not sent, and is not carried out later.
func TestReleaseThatWasNotSent(t *testing.T) {
	s := newStage(t)
	p := s.open(within(0, 0))
	l := s.acquire(p, provider.AcquireRequest{})[0]
	broken := errors.New("broken")
	s.before = func() error { return broken }
	if err := p.Release(t.Context(), release(l, begin)); !errors.Is(err, provider.ErrNotSent) {
		t.Errorf("before: %v", err)
	}
	s.before, s.after = nil, func() error { return broken }
	if err := p.Release(t.Context(), release(l, begin)); !errors.Is(err, broken) || errors.Is(err, provider.ErrNotSent) {
		t.Errorf("after: %v", err)
	}
	late := lateStore{newStage(t), make(chan func(), 1)}
	p = late.open(within(0, 0))
	p.cfg.Records = late.stage
	l = late.acquire(p, provider.AcquireRequest{})[0]
	p.cfg.Records = late
	if err := p.Release(t.Context(), release(l, begin)); !errors.Is(err, provider.ErrNotSent) {
		t.Errorf("late: %v", err)
	}
	(<-late.runs)()
	p.cfg.Records = late.stage
	if lost, err := provider.Verify(t.Context(), p, "", []lease.Lease{l}); err != nil || len(lost) > 0 {
		t.Errorf("it was released: %v", err)
	}
}

// lateStore carries a change out after it has failed.
type lateStore struct {
	*stage
	runs chan func()
}

func (s lateStore) Change(_ context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	s.runs <- func() { _, _ = s.stage.Change(context.Background(), ask, rule) }
	return 0, errors.New("the caller's time is up")
}

// A pool's layouts are near its first one. Others are refused by name.
func TestLayoutsAreNear(t *testing.T) {
	s := newStage(t)
	first := provider.DefaultTerms()
	s.acquire(s.open(first), provider.AcquireRequest{})
	for bitSeq := range 16 {
		_, err := s.open(first.WithBitSeq(bitSeq)).Acquire(t.Context(), provider.AcquireRequest{})
		near := 4 <= bitSeq && bitSeq <= 12 // at most 4 apart
		// Seed 000-4.2-5.
		if near && err != nil || !near && (!errors.Is(err, provider.ErrInvalid) || !strings.Contains(err.Error(), "bit_seq 8")) {
			t.Errorf("bit_seq %d: %v", bitSeq, err)
		}
	}
}

// Of the services of one pool, any may come first.
func TestServicesOfOnePool(t *testing.T) {
	terms := provider.DefaultTerms()
	services := provider.Services{Default: terms, Named: map[string]provider.Terms{
		"coarse": terms.WithBitSeq(terms.BitSeq + provider.MaxApart), "between": terms.WithBitSeq(terms.BitSeq + 1),
	}}
	names := []string{"", "coarse", "between"}
	for i := range names {
		s := newStage(t)
		for k := range names {
			s.acquire(s.openServices(services), provider.AcquireRequest{Service: names[(i+k)%len(names)]})
		}
	}
	services.Named["fine"] = terms.WithBitSeq(terms.BitSeq - 1)
	if err := services.Validate(); !errors.Is(err, provider.ErrInvalid) || !strings.Contains(err.Error(), `service "fine"`) {
		t.Errorf("the error is %v", err)
	}
}

// A grant asks the records once more, whatever has chosen the machine ID.
func TestTakenIsNotGranted(t *testing.T) {
	terms := provider.DefaultTerms()
	p := newStage(t).open(terms)
	x := (&acquire{p: p, t: terms}).attempt(p.base(terms))
	for name, taken := range map[string]grant{
		"its own": {start: 3 << 8, bitSeq: 8}, "a coarser one": {start: 2 << 8, bitSeq: 9}, "a finer one": {start: 3<<8 + 128, bitSeq: 7},
	} {
		taken.end = begin + 1
		seen := map[int64][]grant{0: {taken}}
		if writes, err := x.grant(seenPool{View: record.View{NowMS: begin}}, &decision{seen: seen}, []free{{block: 0, id: 3}}); err == nil {
			t.Errorf("granted over %s: %v", name, writes)
		}
	}
}

// Blocks that a list cuts off are read whole.
func TestListOfLongValues(t *testing.T) {
	s := newStage(t)
	p := s.open(within(0, 39))
	meta := map[string]string{"padding": strings.Repeat("x", 1000)}
	for range 5 {
		s.acquire(p, provider.AcquireRequest{ThroughputPerMS: 8 * 256, Meta: meta})
	}
	records, err := p.List(t.Context(), "")
	if err != nil || len(records) != 40 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	for _, r := range records {
		if r.Meta["padding"] != meta["padding"] {
			t.Errorf("the meta of %v is %v", r.Lease, r.Meta)
		}
	}
}

// The meta of a block is bounded: the oldest grants lose theirs.
func TestMetaIsBounded(t *testing.T) {
	s := newStage(t)
	p := s.open(within(0, 63).WithBitSeq(8))
	fine := provider.DefaultTerms().WithBitSeq(4)
	fine.IDs = provider.IDRange{Low: 0, End: 64}
	q := s.open(fine)
	meta := map[string]string{"padding": strings.Repeat("x", provider.MaxMetaBytes-100)}
	s.acquire(p, provider.AcquireRequest{}) // the first layout
	s.clock.Add(time.Hour.Milliseconds())
	for range 64 {
		s.clock.Add(1)
		s.acquire(q, provider.AcquireRequest{Meta: meta})
	}
	for _, w := range s.wrote {
		if len(w.Value) > maxMeta+32<<10 {
			t.Fatalf("%s has %d bytes", w.Key, len(w.Value))
		}
	}
}
