package pool

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// fine is terms of another layout than DefaultTerms, too far away for one pool.
func fine() provider.Terms {
	return provider.DefaultTerms().WithBitSeq(provider.DefaultTerms().BitSeq - provider.MaxApart - 1)
}

// A pool gets another layout by Init, once all of its leases have ended. The records of slots stay, and
// a process that knows the old layout finds the new one.
func TestInitBeginsAnotherLayout(t *testing.T) {
	s := newStage(t)
	first := provider.DefaultTerms()
	p, q := s.open(first), s.open(fine())
	for range 40 {
		s.acquire(p, provider.AcquireRequest{ThroughputPerMS: 8 * 256})
	}
	l := s.acquire(p, provider.AcquireRequest{})[0]
	s.clock.Store(l.ReservedUntil - 1)
	if err := q.Init(t.Context(), ""); !errors.Is(err, provider.ErrInvalid) {
		t.Fatalf("while a lease is taken: %v", err)
	}
	s.clock.Add(1)
	if _, err := q.Acquire(t.Context(), provider.AcquireRequest{}); !errors.Is(err, provider.ErrInvalid) {
		t.Fatalf("before: %v", err)
	}
	must.Succeed(t, q.Init(t.Context(), ""))
	if page, err := s.List(t.Context(), "block/", "", 10); err != nil || len(page) == 0 {
		t.Errorf("records of slots were deleted (%v)", err)
	}
	longer := s.acquire(q, provider.AcquireRequest{})[0]
	if _, err := p.Acquire(t.Context(), provider.AcquireRequest{}); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("on the old terms: %v", err)
	}
	if lost, err := provider.Verify(t.Context(), p, "", []lease.Lease{l, longer}); err != nil || len(lost) != 1 || lost[0] != l {
		t.Errorf("lost are %v (%v)", lost, err)
	}
	if err := p.Release(t.Context(), release(l, s.clock.Load())); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("a release of the old layout: %v", err)
	}
}

// An Init sees grants, extensions and releases from the time while it looks at the blocks.
func TestInitSeesWhatChangesMeanwhile(t *testing.T) {
	s := newStage(t)
	p, q := s.open(provider.DefaultTerms()), s.open(fine())
	old := s.acquire(p, provider.AcquireRequest{})[0]
	var l lease.Lease
	for name, change := range map[string]func(){
		"a grant": func() { l = s.acquire(p, provider.AcquireRequest{})[0] },
		"an extension": func() {
			s.clock.Store(old.Expired - 1)
			var err error
			l, err = provider.Extend(t.Context(), p, "", old)
			must.Succeed(t, err)
			s.clock.Store(old.ReservedUntil)
		},
	} {
		s.clock.Store(old.ReservedUntil)
		s.listed = func() {
			s.listed = nil
			change()
		}
		if err := q.Init(t.Context(), ""); !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if lost, err := provider.Verify(t.Context(), p, "", []lease.Lease{l}); err != nil || len(lost) > 0 {
			t.Errorf("%s: the lease is lost (%v)", name, err)
		}
		s.clock.Store(l.ReservedUntil)
		old = s.acquire(p, provider.AcquireRequest{})[0]
	}
	// Blocks that are written all the time are never seen whole.
	s.clock.Store(old.ReservedUntil)
	s.listed = func() {
		l := s.acquire(p, provider.AcquireRequest{})[0]
		must.Succeed(t, p.Release(t.Context(), release(l, l.Created)))
		s.clock.Add(1)
	}
	if err := q.Init(t.Context(), ""); !errors.Is(err, errChanged) {
		t.Errorf("while leases are released: %v", err)
	}
}

// No clock that was ahead at the Init makes the pool grant before the leases of the old layout end.
func TestNoGrantBeforeTheLayoutBegins(t *testing.T) {
	s := newStage(t)
	l := s.acquire(s.open(provider.DefaultTerms()), provider.AcquireRequest{})[0]
	s.clock.Store(l.ReservedUntil)
	q := s.open(fine())
	must.Succeed(t, q.Init(t.Context(), ""))
	s.clock.Store(begin)
	var full *provider.FullError
	if _, err := q.Acquire(t.Context(), provider.AcquireRequest{}); !errors.As(err, &full) || full.NextEndMS != l.ReservedUntil {
		t.Errorf("the error is %v", err)
	}
	s.clock.Store(l.ReservedUntil)
	s.acquire(q, provider.AcquireRequest{})
}

// A fenced pool may lack the grant that ends last.
func TestFencedPoolKeepsItsLayout(t *testing.T) {
	s := newStage(t)
	l := s.acquire(s.open(provider.DefaultTerms()), provider.AcquireRequest{})[0]
	s.clock.Store(l.ReservedUntil)
	q := s.open(fine())
	if err := q.Ready(t.Context()); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("it is ready: %v", err)
	}
	must.Succeed(t, s.Store.(*memory.Store).Fence(t.Context()))
	if err := q.Init(t.Context(), ""); !errors.As(err, new(*provider.FencedError)) {
		t.Errorf("the error is %v", err)
	}
}

// An epoch may become an earlier one at once, and a later one once no ID repeats.
func TestInitMovesTheEpoch(t *testing.T) {
	for _, move := range []time.Duration{-time.Hour, time.Hour} {
		s := newStage(t)
		l := s.acquire(s.open(provider.DefaultTerms()), provider.AcquireRequest{})[0]
		terms := provider.DefaultTerms()
		terms.Timeline.EpochMS += move.Milliseconds()
		q := s.open(terms)
		s.clock.Store(l.ReservedUntil + max(0, move.Milliseconds()))
		s.clock.Add(-1)
		if err := q.Init(t.Context(), ""); !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("by %v, too early: %v", move, err)
		}
		s.clock.Add(1)
		must.Succeed(t, q.Init(t.Context(), ""))
		s.acquire(q, provider.AcquireRequest{})
	}
}

// Every ID of a layout is greater than all of the one before.
func TestNoIDRepeatsOnAnotherTimeline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		timeline := func(name string) snowflake.Timeline {
			tl := snowflake.DefaultTimeline()
			tl.BitTS = rapid.IntRange(tl.BitTS-3, tl.BitTS+3).Draw(t, name+" bit_ts")
			tl.EpochMS += rapid.Int64Range(-1<<36, 1<<36).Draw(t, name+" epoch")
			return tl
		}
		old, next := timeline("old"), timeline("next")
		endMS := old.EpochMS + rapid.Int64Range(1, 1<<37).Draw(t, "end")
		since := head{timeline: old}.unusedFrom(next, endMS)
		if since < endMS {
			t.Fatalf("grants are made from %d on, before %d", since, endMS)
		}
		if old == next || since >= next.EndMS() {
			return
		}
		last := old.ID(min(endMS, old.EndMS())-1, old.MaxLow())
		if since < next.EpochMS || next.ID(since, 0) <= last {
			t.Fatalf("from %d on, IDs are not above %d", since, last)
		}
		if since > endMS && since-1 >= next.EpochMS && next.ID(since-1, 0) > last {
			t.Fatalf("they are earlier than %d, too", since)
		}
	})
	if since := (head{timeline: snowflake.Timeline{BitTS: 41}}).unusedFrom(snowflake.Timeline{BitTS: 62}, 1<<41); since != never && since < math.MaxInt64/4 {
		t.Errorf("from %d on", since)
	}
}

// The head is read as it was written.
func TestHead(t *testing.T) {
	h := newHead(fine().Timeline, fine().BitSeq)
	h.number, h.sinceMS, h.mark = 300, begin, mark{1, 15: 2}
	if read, err := parseHead(h.value()); err != nil || read != h {
		t.Errorf("%+v is read as %+v (%v)", h, read, err)
	}
	must.Succeed(t, Check("", h.value(), fine()))
	if err := Check("", []byte("?"), fine()); !errors.Is(err, errFormat) {
		t.Errorf("no head: %v", err)
	}
}
