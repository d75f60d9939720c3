package etcd_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// storm has n acquires begin at once, spread over the hosts, and returns the grants, and how many
// requests were repeated: a host asks once more where no answer comes, as a keeper does, since on a
// busy machine connections break.
func storm(t *testing.T, hosts []*leases, n int) (all []lease.Lease, repeated int) {
	t.Helper()
	ctx := t.Context()
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			h, req := hosts[i%len(hosts)], provider.AcquireRequest{RequestID: provider.NewSecret()}
			got, err := h.Acquire(ctx, req)
			again := 0
			for ; err != nil && !errors.As(err, new(*provider.FullError)) && ctx.Err() == nil; again++ {
				got, err = h.Acquire(ctx, req)
			}
			mu.Lock()
			defer mu.Unlock()
			repeated += again
			if err != nil {
				t.Errorf("Acquire: %v", err)
			}
			all = append(all, got...)
		})
	}
	close(start)
	wg.Wait()
	return all, repeated
}

func noneTwice(t testing.TB, all []lease.Lease) {
	t.Helper()
	seen := map[int64]bool{}
	for _, l := range all {
		if seen[l.Slot().Start] {
			t.Errorf("the slot of %v was granted twice", l)
		}
		seen[l.Slot().Start] = true
	}
}

// 200 acquires at once, from hosts that know nothing of each other and from one lease server, where
// the pool is large, and where it is used up to the last machine ID.
func TestStormOfLeases(t *testing.T) {
	const n = 200
	for _, test := range []struct {
		name  string
		hosts int
		ids   int64
		most  int64 // round trips per acquire; were there one key that all fight over, it would be half of n
	}{
		{"200 hosts", n, 8192, 40},
		{"200 hosts, 201 machine IDs", n, n + 1, 60},
		{"one process", 1, 8192, 5},
		{"one process, 201 machine IDs", 1, n + 1, 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := etcdtest.Shared(t)
			o := options{services: provider.Services{Default: of(provider.DefaultTerms(), 0, test.ids)}}
			var hosts []*leases
			var ways []*way
			for range test.hosts {
				h := mustOpen(t, cfg, o)
				hosts, ways = append(hosts, h), append(ways, h.way())
			}
			all := []lease.Lease{acquireOne(t, hosts[0])}
			for i, h := range hosts { // all are connected
				must.Succeed(t, h.Ready(testContext(t)))
				ways[i].trips.Store(0)
			}
			began := time.Now()
			granted, repeated := storm(t, hosts, n)
			took := time.Since(began)
			all = append(all, granted...)
			noneTwice(t, all) // seed 003-4.4-1
			if len(all) != n+1 {
				t.Errorf("%d leases, want %d", len(all), n+1)
			}
			var trips int64
			for _, w := range ways {
				trips += w.trips.Load()
			}
			t.Logf("%d acquires in %v (%.0f/s), %.1f round trips each, %d repeated", n, took, n/took.Seconds(), float64(trips)/n, repeated)
			if trips > test.most*n && repeated == 0 {
				t.Errorf("%d round trips for %d acquires, want at most %d each", trips, n, test.most)
			}
			if test.ids == n+1 {
				if _, err := hosts[0].Acquire(testContext(t), provider.AcquireRequest{}); !errors.As(err, new(*provider.FullError)) {
					t.Errorf("one more: %v, want a FullError", err)
				}
			}
		})
	}
}
