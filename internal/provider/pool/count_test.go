package pool

import (
	"errors"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// Two processes count into one pool. What one has counted is written with its next grant.
func TestCounters(t *testing.T) {
	s := newStage(t)
	p, q := s.open(within(0, 1)), s.open(within(0, 1))
	a, b := s.acquire(p, provider.AcquireRequest{})[0], s.acquire(q, provider.AcquireRequest{})[0]
	for _, full := range []*Provider{p, q} {
		if _, err := full.Acquire(t.Context(), provider.AcquireRequest{}); !errors.As(err, new(*provider.FullError)) {
			t.Errorf("the error is %v, want a FullError", err)
		}
	}
	s.clock.Add(1)
	longer, err := provider.Extend(t.Context(), p, "", a)
	must.Succeed(t, err)
	forged := b
	forged.Secret = "forged"
	_, notOwner := provider.Extend(t.Context(), p, "", forged)
	must.Succeed(t, p.Release(t.Context(), release(longer, begin)))
	_, ended := provider.Extend(t.Context(), p, "", longer)
	if !errors.Is(notOwner, provider.ErrBadSignature) || !errors.Is(ended, provider.ErrConflict) {
		t.Errorf("the errors are %v and %v", notOwner, ended)
	}
	must.Succeed(t, p.Release(t.Context(), release(b, begin)))
	s.clock.Add(1)
	s.acquire(p, provider.AcquireRequest{})
	s.acquire(q, provider.AcquireRequest{})
	got, err := s.open(within(0, 1)).Counters(t.Context(), "")
	must.Succeed(t, err)
	want := map[string]int64{
		"client_id_count": 2, "client_get_id_count": 6, "client_get_id_success": 4, "get_id_no_available_id": 2,
		"extend_ttl_count": 3, "extend_ttl_success": 1, "extend_ttl_ownership_error": 1, "extend_ttl_expire_warning": 1,
	}
	for _, name := range provider.CounterNames {
		if n, counted := got[name]; !counted || n != want[name] { // seed 001-7
			t.Errorf("%s is %d (%v), want %d", name, n, counted, want[name])
		}
	}
}

// A lease server counts its clients, and not itself.
func TestCountersOfOthers(t *testing.T) {
	s := newStage(t)
	p := s.open(within(0, 9))
	for i, client := range []provider.Client{
		provider.KnownClient, provider.NewClient, provider.KnownClient, provider.NewClient, provider.OwnClient, provider.OwnClient,
	} {
		s.acquire(p, provider.AcquireRequest{Client: client})
		counted, err := p.Counters(t.Context(), "")
		must.Succeed(t, err)
		if got, want := counted[provider.CountClients], []int64{0, 1, 1, 2, 3, 3}[i]; got != want { // seed 001-9
			t.Errorf("after %d acquires %s is %d, want %d", i+1, provider.CountClients, got, want)
		}
	}
}

// The counts of a change with an unknown outcome are given up, and its repetition does not count again.
func TestUnknownOutcomesAreCountedOnce(t *testing.T) {
	for _, unknown := range []error{errors.New("no answer"), record.ErrUnconfirmed} {
		s := newStage(t)
		p := s.open(provider.DefaultTerms())
		p.count(provider.DefaultPool, counts{full: 1})
		s.after = func() error { return unknown }
		req := provider.AcquireRequest{RequestID: "r", Client: provider.OwnClient}
		if _, err := p.Acquire(t.Context(), req); !errors.Is(err, unknown) {
			t.Fatalf("the error is %v", err)
		}
		s.after = nil
		l := s.acquire(p, req)[0]
		s.clock.Add(1)
		s.after = func() error { return unknown }
		p.count(provider.DefaultPool, counts{full: 1})
		if _, err := provider.Extend(t.Context(), p, "", l); !errors.Is(err, unknown) {
			t.Fatalf("the error is %v", err)
		}
		s.after = nil
		s.acquire(p, provider.AcquireRequest{RequestID: "another", Client: provider.OwnClient})
		got, err := p.Counters(t.Context(), "")
		for name, want := range map[string]int64{
			provider.CountClients: 1, provider.CountGranted: 2, provider.CountFull: 2, provider.CountExtended: 1,
		} {
			if err != nil || got[name] != want {
				t.Errorf("after %v: %s is %d (%v), want %d", unknown, name, got[name], err, want)
			}
		}
	}
}

// What has certainly not been written is counted by the next change.
func TestRefusedChangesLoseNoCounts(t *testing.T) {
	for _, refusal := range []error{record.ErrCrowded, record.ErrBusy} {
		s := newStage(t)
		p := s.open(provider.DefaultTerms())
		p.count(provider.DefaultPool, counts{full: 1})
		s.before = func() error { return refusal }
		if _, err := p.Acquire(t.Context(), provider.AcquireRequest{RequestID: "r"}); !errors.As(err, new(*provider.BusyError)) {
			t.Fatalf("the error is %v, want a BusyError", err)
		}
		s.before = nil
		s.acquire(p, provider.AcquireRequest{RequestID: "r"})
		if got, err := p.Counters(t.Context(), ""); err != nil || got[provider.CountFull] != 1 || got[provider.CountGranted] != 1 {
			t.Errorf("after %v: %v (%v)", refusal, got, err)
		}
	}
}
