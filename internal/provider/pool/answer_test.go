package pool

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// failing has the n-th change fail. It returns the number of all.
func (s *stage) failing(n int, err error) *int {
	changes := new(int)
	s.before = func() error {
		if *changes++; *changes == n {
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

// losing loses the answer of one change: it was carried out, or it was not.
type losing struct {
	*stage
	carriesOut, over bool
}

func (l *losing) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	if l.over {
		return l.stage.Change(ctx, ask, rule)
	}
	l.over = true
	at, err := l.stage.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		writes, err := rule(v)
		if err == nil && !l.carriesOut {
			err = record.ErrOutrun
		}
		return writes, err
	})
	return at, cmp.Or(err, record.ErrOutrun)
}

// Where the answer to a grant is lost and no caller can ask for it again, it is given back, and no
// other one is.
func TestGrantsOfALostAnswerAreGivenBack(t *testing.T) {
	for _, carriesOut := range []bool{true, false} {
		s := newStage(t)
		p := s.open(within(0, 1))
		leases := s.acquire(p, provider.AcquireRequest{})
		p.cfg.Records = &losing{stage: s, carriesOut: carriesOut}
		if _, err := p.Acquire(t.Context(), provider.AcquireRequest{}); !errors.Is(err, record.ErrOutrun) {
			t.Fatalf("carried out: %v: the error is %v", carriesOut, err)
		}
		leases = append(leases, s.acquire(p, provider.AcquireRequest{})...)
		s.held(p, leases)
	}
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

// Nobody can ask again for a part that was granted without a request ID: it is given back.
func TestAPartWithoutARequestIsGivenBack(t *testing.T) {
	s := newStage(t)
	p := s.open(provider.DefaultTerms())
	broken := errors.New("broken")
	s.failing(3, broken)
	if _, err := p.Acquire(t.Context(), provider.AcquireRequest{ThroughputPerMS: 200 * 256}); !errors.Is(err, broken) {
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
	changes := s.failing(0, nil)
	leases := s.acquire(s.open(terms), provider.AcquireRequest{RequestID: "r", ThroughputPerMS: 500 << terms.BitSeq})
	if len(leases) != 500 || *changes < 250 {
		t.Errorf("%d leases by %d changes", len(leases), *changes)
	}
}
