package proof

import (
	"context"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
)

// leaseHosts are hosts that lease from one model of a store. Each knows what it saw last, and on
// etcd each goes by its own clock. A call is made by any of them.
type leaseHosts struct {
	provider.Provider // the first one, for what is not changed
	w                 *world
	records           *records
	all               []*pool.Provider
}

// openPool has the world lease from records in a model.
func (w *world) openPool(services provider.Services, nowMS func() int64) provider.Provider {
	h := &leaseHosts{w: w, records: &records{w: w, kind: w.kind, area: pool.AreaOf(services), clock: nowMS}}
	h.records.begin()
	for range 3 {
		clock := func() int64 { return nowMS() + w.rnd.Int64N(61) - 30 }
		p, err := pool.New(pool.Config{
			Records: h.records.client(direct{h.records}, h.records, clock), Services: services, NowMS: clock, Random: w.rnd.Int64N,
			Info: provider.Info{Name: "records", Scope: provider.ScopeShared},
		})
		must(err, nil)
		h.all = append(h.all, p)
	}
	h.Provider = h.all[0]
	return h
}

// host is the host that makes the next call, at random.
func (h *leaseHosts) host() *pool.Provider {
	if h.w.rnd.IntN(50) == 0 {
		h.records.fallBack(0)
	}
	return h.all[h.w.rnd.IntN(len(h.all))]
}

// leaseTime is longer than any call: nothing answers late between a host and this store.
const leaseTime = time.Minute

// Acquire implements provider.Provider.
func (h *leaseHosts) Acquire(_ context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	ctx, cancel := context.WithTimeout(context.Background(), leaseTime)
	defer cancel()
	h.w.count("leases asked for in a model of " + h.records.kind.String())
	return h.host().Acquire(ctx, req)
}

// Release implements provider.Provider.
func (h *leaseHosts) Release(ctx context.Context, req provider.ReleaseRequest) error {
	return h.host().Release(ctx, req)
}

// Verify implements provider.Provider.
func (h *leaseHosts) Verify(ctx context.Context, service string, claims []provider.Claim) ([]int, error) {
	return h.host().Verify(ctx, service, claims)
}

// Extend implements provider.Provider.
func (h *leaseHosts) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	return h.host().Extend(ctx, req)
}
