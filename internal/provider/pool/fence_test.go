package pool

import (
	"errors"
	"testing"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// forget has the records lose everything, as a server without persistence does.
func (s *stage) forget() { s.Store.(*memory.Store).Forget() }

// fenced acquires where a store that has forgotten must refuse, and returns until when it does.
func (s *stage) fenced(p *Provider, req provider.AcquireRequest) int64 {
	s.Helper()
	leases, err := p.Acquire(s.Context(), req)
	fenced, ok := errors.AsType[*provider.FencedError](err)
	if !ok || fenced.Reason == "" {
		s.Fatalf("Acquire gave %v and the error %v, want a FencedError with a reason", leases, err)
	}
	return fenced.UntilMS
}

// A pool that was lost grants, repeats and extends nothing until each lease that may have been lost
// has ended. A lease that it lacks is not lost meanwhile.
func TestLostPoolIsFenced(t *testing.T) {
	s := newStage(t)
	terms := within(0, 0)
	p := s.open(terms)
	l := s.acquire(p, provider.AcquireRequest{RequestID: "r"})[0]
	s.forget()
	until := s.fenced(p, provider.AcquireRequest{RequestID: "r"})
	_, err := provider.Extend(t.Context(), p, "", l)
	if fenced, ok := errors.AsType[*provider.FencedError](err); !ok || fenced.UntilMS != until || until < l.ReservedUntil {
		t.Errorf("the fence ends at %d, a lease that was lost at %d, and an extension has the error %v", until, l.ReservedUntil, err)
	}
	if lost, err := provider.Verify(t.Context(), p, "", []lease.Lease{l}); err != nil || len(lost) > 0 {
		t.Errorf("while the store is fenced %v is lost: %v", lost, err)
	}
	s.clock.Store(until - 1)
	s.fenced(p, provider.AcquireRequest{})
	s.clock.Store(until)
	if next := s.acquire(p, provider.AcquireRequest{})[0]; next.Created < l.ReservedUntil {
		t.Errorf("after %v comes %v", l, next)
	}
	if lost, err := provider.Verify(t.Context(), p, "", []lease.Lease{l}); err != nil || len(lost) != 1 {
		t.Errorf("after the fence %v are lost: %v", lost, err)
	}
}

// An operator who says that the store is new ends the fence. On a pool in use that changes nothing.
func TestInitEndsTheFence(t *testing.T) {
	s := newStage(t)
	s.forget()
	p := s.open(within(5, 5))
	s.fenced(p, provider.AcquireRequest{})
	must.Succeed(t, p.Init(t.Context(), ""))
	l := s.acquire(p, provider.AcquireRequest{})[0]
	must.Succeed(t, p.Init(t.Context(), ""))
	_, err := p.Acquire(t.Context(), provider.AcquireRequest{})
	if full, ok := errors.AsType[*provider.FullError](err); !ok || full.NextEndMS != l.ReservedUntil {
		t.Errorf("the error is %v, want a FullError until %d", err, l.ReservedUntil)
	}
}
