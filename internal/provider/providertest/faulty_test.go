package providertest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/memory"
	"github.com/kazahana/kazahana/internal/provider/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// faulty wraps a memory provider on the bubble's clock, which begins in 2000.
func faulty(t *testing.T) *providertest.Faulty {
	t.Helper()
	terms := provider.DefaultTerms()
	terms.Timeline.EpochMS = time.Now().UnixMilli()
	p, err := memory.New(memory.NewStore(nil), provider.Services{Default: terms})
	if err != nil {
		t.Fatal(err)
	}
	return providertest.NewFaulty(p)
}

func TestFaulty(t *testing.T) {
	ctx := context.Background()
	down := errors.New("down")
	synctest.Test(t, func(t *testing.T) {
		f := faulty(t)
		defer f.Close()
		acquire := func(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, time.Duration, error) {
			begun := time.Now()
			leases, err := f.Acquire(ctx, req)
			return leases, time.Since(begun), err
		}
		f.Next(providertest.OpAcquire, providertest.Fail(down), providertest.Fault{},
			providertest.Delay(time.Hour), providertest.Hang(), providertest.Fewer(1),
			providertest.Malformed(), providertest.Shifted(-time.Hour))

		if _, took, err := acquire(ctx, provider.AcquireRequest{}); !errors.Is(err, down) || took != 0 {
			t.Errorf("Fail: %v after %v", err, took)
		}
		if leases, _, err := acquire(ctx, provider.AcquireRequest{}); err != nil || len(leases) != 1 {
			t.Errorf("no fault: %v, %v", leases, err)
		}
		if leases, took, err := acquire(ctx, provider.AcquireRequest{}); err != nil || len(leases) != 1 || took != time.Hour {
			t.Errorf("Delay: %v, %v after %v", leases, err, took)
		}
		short, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if _, took, err := acquire(short, provider.AcquireRequest{}); !errors.Is(err, context.DeadlineExceeded) || took != time.Minute {
			t.Errorf("Hang: %v after %v", err, took)
		}
		if leases, _, err := acquire(ctx, provider.AcquireRequest{ThroughputPerMS: 1024}); err != nil || len(leases) != 1 {
			t.Errorf("Fewer: %v, %v", leases, err)
		}
		if leases, _, err := acquire(ctx, provider.AcquireRequest{}); err != nil || leases[0].Validate() == nil {
			t.Errorf("Malformed: %v, %v", leases, err)
		}
		if leases, _, err := acquire(ctx, provider.AcquireRequest{}); err != nil || leases[0].Expired > time.Now().UnixMilli() {
			t.Errorf("Shifted: %v, %v", leases, err)
		}

		f.Always(providertest.OpAcquire, providertest.LoseAnswer())
		req := provider.AcquireRequest{RequestID: provider.NewSecret()}
		if leases, _, err := acquire(ctx, req); !errors.Is(err, providertest.ErrAnswerLost) || leases != nil {
			t.Errorf("LoseAnswer: %v, %v", leases, err)
		}
		f.Heal()
		records, err := acquired(f, req)
		if err != nil || len(records) != 1 {
			t.Errorf("after LoseAnswer: %v, %v", records, err)
		}
		if n := f.Calls(providertest.OpAcquire); n != 9 || len(f.Acquires()) != 9 || f.Acquires()[8].RequestID != req.RequestID {
			t.Errorf("%d calls were counted, want 9: %v", n, f.Acquires())
		}
	})
}

func acquired(p provider.Provider, req provider.AcquireRequest) ([]lease.Lease, error) {
	return p.Acquire(context.Background(), req)
}

func TestFaultyReleaseAndVerify(t *testing.T) {
	ctx := context.Background()
	down := errors.New("down")
	synctest.Test(t, func(t *testing.T) {
		f := faulty(t)
		defer f.Close()
		leases, err := f.Acquire(ctx, provider.AcquireRequest{})
		if err != nil {
			t.Fatal(err)
		}
		f.Next(providertest.OpVerify, providertest.Fail(down))
		if _, err := provider.Verify(ctx, f, "", leases); !errors.Is(err, down) {
			t.Errorf("Verify: %v", err)
		}
		if lost, err := provider.Verify(ctx, f, "", leases); err != nil || len(lost) != 0 {
			t.Errorf("Verify: %v, %v", lost, err)
		}
		at := time.Now().UnixMilli()
		req := provider.ReleaseRequest{ID: leases[0].ID, BitSeq: 8, TimestampMS: at, Signature: lease.Sign(leases[0].Secret, leases[0].ID, at)}
		f.Next(providertest.OpRelease, providertest.Fail(down), providertest.LoseAnswer())
		if err := f.Release(ctx, req); !errors.Is(err, down) {
			t.Errorf("Release: %v", err)
		}
		if lost, err := provider.Verify(ctx, f, "", leases); err != nil || len(lost) != 0 {
			t.Errorf("a release that failed was carried out: %v, %v", lost, err)
		}
		if err := f.Release(ctx, req); !errors.Is(err, providertest.ErrAnswerLost) {
			t.Errorf("Release: %v", err)
		}
		if lost, err := provider.Verify(ctx, f, "", leases); err != nil || len(lost) != 1 {
			t.Errorf("a release whose answer was lost was not carried out: %v, %v", lost, err)
		}
		if len(f.Releases()) != 2 || f.Info().Name != "memory" {
			t.Errorf("%v, %v", f.Releases(), f.Info())
		}
	})
}
