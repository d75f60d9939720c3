package sqlite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// leases is a provider on a file.
type leases struct {
	*backend.Leases
	path     string
	services provider.Services
	at       func(step string) error // is called at each step of a write; nil: nothing is
}

func newLeases(ctx context.Context, cfg backend.LeaseFile) (*leases, error) {
	p := &leases{path: cfg.Path, services: cfg.Services}
	cfg.At = func(step string) error {
		if p.at == nil {
			return nil
		}
		return p.at(step)
	}
	var err error
	p.Leases, err = backend.OpenLeaseFile(ctx, cfg)
	return p, err
}

func openLeases(t *testing.T, cfg backend.LeaseFile) *leases {
	t.Helper()
	p, err := newLeases(context.Background(), cfg)
	must.Succeed(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func defaultServices() provider.Services {
	return provider.Services{Default: provider.DefaultTerms()}
}

func mustAcquire(t *testing.T, p *leases) lease.Lease {
	t.Helper()
	leases, err := p.Acquire(context.Background(), provider.AcquireRequest{})
	must.Succeed(t, err)
	return leases[0]
}

func releaseOf(l lease.Lease) provider.ReleaseRequest {
	return providertest.SignedRelease(l, time.Now().UnixMilli())
}

func isHeld(t *testing.T, p *leases, l lease.Lease) bool {
	t.Helper()
	lost, err := provider.Verify(context.Background(), p, "", []lease.Lease{l})
	must.Succeed(t, err)
	return len(lost) == 0
}

func TestLeasesConform(t *testing.T) {
	ring.All(t)
	providertest.Run(t, leaseFiles(t)) // seed 000-7.3-2
}

// leaseFiles makes stores with files in memory.
func leaseFiles(t *testing.T) providertest.Factory {
	live := disktest.Memory(t)
	return func(t *testing.T) providertest.Store {
		var clock atomic.Int64
		dir, err := os.MkdirTemp(ring.Dir(t), "leases-")
		must.Succeed(t, err)
		path := filepath.Join(dir, "leases.db")
		return providertest.Store{
			Open: func(services provider.Services) (provider.Provider, error) {
				return newLeases(context.Background(), backend.LeaseFile{Path: path, Services: services, NowMS: clock.Load, LiveDir: live})
			},
			SetClock: clock.Store,
			Checks:   25,
			Close:    func() { _ = os.RemoveAll(dir) }, // each file has room of its own
		}
	}
}

// A pool of another epoch or layout is an error that names the file, also for a look at it.
func TestPoolOfOtherTerms(t *testing.T) {
	path := madeFile(t)
	services := defaultServices()
	services.Default.Timeline.EpochMS++
	cfg := backend.LeaseFile{Path: path, Services: services}
	p, err := backend.OpenLeaseFile(t.Context(), cfg)
	must.Succeed(t, err)
	defer p.Close()
	if err := p.Ready(t.Context()); !errors.Is(err, provider.ErrInvalid) || !strings.Contains(err.Error(), path) {
		t.Errorf("Ready: %v", err)
	}
	if err := cfg.Check(t.Context()); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("Check: %v", err)
	}
}
