package pool

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// A release that is repeated has the answer that it had, at any later time, and also while there
// is a fence. The lease's owner counts before the time.
func TestReleaseIsRepeated(t *testing.T) {
	s := newStage(t)
	p := s.open(within(0, 3))
	l, other := s.acquire(p, provider.AcquireRequest{})[0], s.acquire(p, provider.AcquireRequest{})[0]
	req := release(l, begin)
	must.Succeed(t, p.Release(t.Context(), req))
	s.clock.Add(time.Hour.Milliseconds())
	must.Succeed(t, p.Release(t.Context(), req))
	must.Succeed(t, s.Store.(*memory.Store).Fence(t.Context()))
	must.Succeed(t, s.open(within(0, 3)).Release(t.Context(), req))
	for _, late := range []provider.ReleaseRequest{req, release(other, begin)} {
		late.Signature = lease.Sign("x", late.ID, begin)
		if err := p.Release(t.Context(), late); !errors.Is(err, provider.ErrBadSignature) {
			t.Errorf("forged, and late: %v", err)
		}
	}
	if err := p.Release(t.Context(), release(other, begin)); !errors.Is(err, provider.ErrTimestampSkew) {
		t.Errorf("late: %v", err)
	}
}

// twiceStore runs each rule on an empty pool of an earlier time first, as if another call were faster, and
// once more after a change that has failed.
type twiceStore struct{ *stage }

func (s twiceStore) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	early := func() {
		_, _ = rule(record.View{Records: map[string]record.Record{}, NowMS: s.clock.Load() - 7})
	}
	early()
	at, err := s.stage.Change(ctx, ask, rule)
	if err != nil {
		early()
	}
	return at, err
}

// An answer is the committed decision, and not another run's of the rule.
func TestAnswerIsWhatWasCommitted(t *testing.T) {
	s := newStage(t)
	p := s.open(provider.DefaultTerms())
	p.cfg.Records = twiceStore{s}
	for range 3 {
		l := s.acquire(p, provider.AcquireRequest{RequestID: "r"})[0]
		if lost, err := provider.Verify(t.Context(), p, "", []lease.Lease{l}); err != nil || len(lost) > 0 || l.Created != begin {
			t.Errorf("%v is lost: %v (%v)", l, lost, err)
		}
	}
	l := s.acquire(p, provider.AcquireRequest{})[0]
	s.clock.Add(1000)
	longer, err := provider.Extend(t.Context(), p, "", l)
	must.Succeed(t, err)
	records, err := p.List(t.Context(), "")
	must.Succeed(t, err)
	for _, r := range records {
		if r.Lease.ID == longer.ID && (r.Lease.Expired != longer.Expired || r.End != longer.ReservedUntil) {
			t.Errorf("the record is %+v, and the answer %+v", r, longer)
		}
	}
	must.Succeed(t, p.Release(t.Context(), release(longer, s.clock.Load())))
}
