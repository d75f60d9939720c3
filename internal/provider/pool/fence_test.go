package pool

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

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

// A dead process's request is carried on, or answered, by the process that repeats it: it
// takes no machine ID twice.
func TestRequestAfterACrash(t *testing.T) {
	died := errors.New("the process died")
	for _, carriedOut := range []bool{false, true} {
		s := newStage(t)
		p, q := s.open(within(0, 1)), s.open(within(0, 1))
		req := provider.AcquireRequest{RequestID: "r", ThroughputPerMS: 2 * 256}
		if s.before = func() error { return died }; carriedOut {
			s.before, s.after = nil, func() error { return died }
		}
		if _, err := p.Acquire(t.Context(), req); !errors.Is(err, died) {
			t.Errorf("the error is %v", err)
		}
		s.before, s.after = nil, nil
		if leases := s.acquire(q, req); len(leases) != 2 {
			t.Errorf("carried out %v: the same request gets %v", carriedOut, leases)
		}
	}
}

// Callers of two processes that repeat a request at the same time share its leases.
func TestRequestOfTwoProcesses(t *testing.T) {
	s := newStage(t)
	providers := []*Provider{s.open(provider.DefaultTerms()), s.open(provider.DefaultTerms())}
	answers := make([][]lease.Lease, 8)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			var err error
			answers[i], err = providers[i%2].Acquire(t.Context(), provider.AcquireRequest{RequestID: "r", ThroughputPerMS: 5 * 256})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, leases := range answers {
		if len(leases) != 5 || !slices.Equal(leases, answers[0]) {
			t.Fatalf("one request was answered with %v and %v", answers[0], leases)
		}
	}
}
