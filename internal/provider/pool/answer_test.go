package pool

import (
	"errors"
	"slices"
	"testing"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// many asks for as many leases as a request gets.
func many(request string) provider.AcquireRequest {
	return provider.AcquireRequest{RequestID: request, ThroughputPerMS: 200 * 256}
}

// failing has the n-th change fail, and, with more, those after it. It returns the number of all.
func (s *stage) failing(n int, more bool, err error) *int {
	changes := new(int)
	s.before = func() error {
		if *changes++; *changes == n || more && *changes > n {
			return err
		}
		return nil
	}
	return changes
}

// held compares the recorded leases with the answered ones.
func (s *stage) held(p *Provider, leases []lease.Lease) {
	s.Helper()
	records, err := p.List(s.Context(), "")
	must.Succeed(s, err)
	lost, err := provider.Verify(s.Context(), p, "", leases)
	if err != nil || len(lost) > 0 || len(records) != len(leases) {
		s.Errorf("%d leases were answered, %d of them lost (%v), and %d are recorded", len(leases), len(lost), err, len(records))
	}
}

// A grant that replicas have not confirmed is given back where no caller can ask for it again.
func TestUnconfirmedGrantsAreGivenBack(t *testing.T) {
	s := newStage(t)
	p := s.open(within(0, 0))
	s.after = func() error { return record.ErrUnconfirmed }
	if _, err := p.Acquire(t.Context(), provider.AcquireRequest{}); !errors.Is(err, record.ErrUnconfirmed) {
		t.Fatalf("the error is %v", err)
	}
	s.after = nil
	s.acquire(p, provider.AcquireRequest{})
}

// What replicas have not confirmed stays for the repetitions of its request: one of them may have
// been answered with it.
func TestUnconfirmedRequestKeepsItsLeases(t *testing.T) {
	s := newStage(t)
	p, other := s.open(within(0, 0)), s.open(within(0, 0))
	req := provider.AcquireRequest{RequestID: "r"}
	var leases []lease.Lease
	s.after = func() error {
		s.after = nil
		leases = s.acquire(other, req)
		return record.ErrUnconfirmed
	}
	if _, err := p.Acquire(t.Context(), req); !errors.Is(err, record.ErrUnconfirmed) {
		t.Fatalf("the error is %v", err)
	}
	s.held(p, leases)
	if again := s.acquire(p, req); !slices.Equal(again, leases) {
		t.Errorf("the answer is %v, and to another caller %v", again, leases)
	}
}

// A request that has failed, with a part of its leases granted or not, is answered with all of them once
// it is repeated.
func TestBusyRepetition(t *testing.T) {
	s := newStage(t)
	p, other := s.open(provider.DefaultTerms()), s.open(provider.DefaultTerms())
	broken := errors.New("broken")
	s.failing(3, false, broken)
	if _, err := p.Acquire(t.Context(), many("r")); !errors.Is(err, broken) {
		t.Fatalf("the error is %v", err)
	}
	s.failing(1, true, record.ErrCrowded)
	var busy *provider.BusyError
	if leases, err := other.Acquire(t.Context(), many("r")); !errors.As(err, &busy) {
		t.Errorf("%d leases, %v", len(leases), err)
	}
	s.failing(2, true, record.ErrBusy)
	if leases, err := other.Acquire(t.Context(), many("r")); !errors.As(err, &busy) {
		t.Errorf("with leases of another call: %d leases, %v", len(leases), err)
	}
	s.before = nil
	leases := s.acquire(other, many("r"))
	if len(leases) != 200 {
		t.Errorf("%d leases, want 200", len(leases))
	}
	s.held(other, leases)
}

// Nobody can ask again for a part that was granted without a request ID: it is given back.
func TestAPartWithoutARequestIsGivenBack(t *testing.T) {
	s := newStage(t)
	p := s.open(provider.DefaultTerms())
	broken := errors.New("broken")
	s.failing(3, false, broken)
	if _, err := p.Acquire(t.Context(), many("")); !errors.Is(err, broken) {
		t.Fatalf("the error is %v", err)
	}
	s.before = nil
	records, err := p.List(t.Context(), "")
	must.Succeed(t, err)
	for _, r := range records {
		if !r.Released || r.End > begin {
			t.Fatalf("a part is kept: %+v", r)
		}
	}
}

// A request may take as many changes as it wants leases.
func TestManyRoundsOfOneRequest(t *testing.T) {
	s := newStage(t)
	s.acquire(s.open(provider.DefaultTerms()), provider.AcquireRequest{})
	terms := provider.DefaultTerms().WithBitSeq(provider.DefaultTerms().BitSeq + provider.MaxApart)
	terms.MaxLeasesPerAcquire = 500
	changes := s.failing(0, false, nil)
	leases := s.acquire(s.open(terms), provider.AcquireRequest{RequestID: "r", ThroughputPerMS: 500 << terms.BitSeq})
	if len(leases) != 500 || *changes < 250 {
		t.Errorf("%d leases by %d changes", len(leases), *changes)
	}
}
