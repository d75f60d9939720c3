package etcd

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// storm has n acquires begin at once, spread over the providers, and returns
// what was granted and how many transactions lost a race.
func storm(t testing.TB, providers []*Provider, n int) (leases []lease.Lease, lost int64, took time.Duration) {
	t.Helper()
	var races atomic.Int64
	for _, p := range providers {
		p.contended = func() { races.Add(1) }
	}
	ctx := testContext(t)
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			got, err := providers[i%len(providers)].Acquire(ctx, provider.AcquireRequest{RequestID: provider.NewSecret()})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("Acquire: %v", err)
			}
			leases = append(leases, got...)
		})
	}
	begun := time.Now()
	close(start)
	wg.Wait()
	return leases, races.Load(), time.Since(begun)
}

func noneTwice(t testing.TB, leases []lease.Lease) {
	t.Helper()
	seen := map[int64]bool{}
	for _, l := range leases {
		if seen[l.Slot().Start] {
			t.Errorf("the slot of %v was granted twice", l)
		}
		seen[l.Slot().Start] = true
	}
}

// TestStorm: 200 acquires at once, from hosts that know nothing of each other
// and from one lease server, where the pool is large, and where it is used up
// to the last machine ID.
func TestStorm(t *testing.T) {
	const n = 200
	for _, test := range []struct {
		name  string
		hosts int
		ids   int64
		most  float64 // races lost per acquire; were there one key that all fight over, it would be half of n
	}{
		{"200 hosts", n, 8192, 20},
		{"200 hosts, 200 machine IDs", n, n + 1, 40},
		{"one process", 1, 8192, 10},
		{"one process, 200 machine IDs", 1, n + 1, 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			terms := provider.DefaultTerms()
			terms.IDs = provider.IDRange{Low: 0, End: test.ids}
			cfg := config(t, provider.Services{Default: terms}, nil)
			var providers []*Provider
			for i := range test.hosts {
				cfg.Host = fmt.Sprint("host", i)
				providers = append(providers, mustOpen(t, cfg))
			}
			// Everybody sees the same cursor, and is connected.
			first, err := providers[0].Acquire(testContext(t), provider.AcquireRequest{})
			must.Succeed(t, err)
			for _, p := range providers {
				if _, err := p.List(testContext(t), ""); err != nil {
					t.Fatal(err)
				}
			}
			leases, lost, took := storm(t, providers, n)
			leases = append(leases, first...)
			noneTwice(t, leases)
			if len(leases) != n+1 {
				t.Errorf("%d leases, want %d", len(leases), n+1)
			}
			perAcquire := float64(lost) / n
			t.Logf("%d acquires in %v (%.0f/s), %.2f races lost per acquire", n, took, n/took.Seconds(), perAcquire)
			if perAcquire > test.most {
				t.Errorf("%.2f races were lost per acquire, want at most %v", perAcquire, test.most)
			}
			if test.ids == n+1 {
				var full *provider.FullError
				if _, err := providers[0].Acquire(testContext(t), provider.AcquireRequest{}); !errors.As(err, &full) {
					t.Errorf("one more: %v, want a FullError", err)
				}
			}
		})
	}
}
