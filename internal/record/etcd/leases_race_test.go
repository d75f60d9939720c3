package etcd_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// way counts what a pool asks of etcd, and lets something happen before its next commit.
type way struct {
	clientv3.KV
	trips  atomic.Int64
	before atomic.Pointer[func()]
}

func (l *leases) way() *way {
	w := &way{KV: l.conn.KV.KV}
	l.conn.KV.KV = w
	return w
}

func (w *way) beforeCommit(f func()) { w.before.Store(&f) }

func (w *way) Get(ctx context.Context, key string, o ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	w.trips.Add(1)
	return w.KV.Get(ctx, key, o...)
}

func (w *way) Txn(ctx context.Context) clientv3.Txn { return &wayTxn{w.KV.Txn(ctx), w, false} }

type wayTxn struct {
	clientv3.Txn
	way     *way
	commits bool // it compares
}

func (t *wayTxn) If(c ...clientv3.Cmp) clientv3.Txn {
	t.Txn, t.commits = t.Txn.If(c...), len(c) > 0
	return t
}
func (t *wayTxn) Then(o ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Then(o...); return t }
func (t *wayTxn) Else(o ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(o...); return t }

func (t *wayTxn) Commit() (*clientv3.TxnResponse, error) {
	t.way.trips.Add(1)
	if t.commits {
		if f := t.way.before.Swap(nil); f != nil {
			(*f)()
		}
	}
	return t.Txn.Commit()
}

// of is terms that grant some machine IDs.
func of(terms provider.Terms, low, end int64) provider.Terms {
	terms.IDs = provider.IDRange{Low: low, End: end}
	return terms
}

func acquireOne(t testing.TB, p provider.Provider) lease.Lease {
	t.Helper()
	got, err := p.Acquire(testContext(t), provider.AcquireRequest{})
	must.Succeed(t, err)
	return got[0]
}

func giveBack(t testing.TB, p provider.Provider, l lease.Lease) {
	t.Helper()
	must.Succeed(t, p.Release(testContext(t), providertest.SignedRelease(l, time.Now().UnixMilli())))
}

// Where the pool exists, a lease costs three round trips at most, and no lease of etcd.
func TestLeaseCostsThreeRoundTrips(t *testing.T) {
	cfg := etcdtest.Shared(t)
	near := mustOpen(t, cfg, options{})
	acquireOne(t, near)
	for range 5 {
		p := mustOpen(t, cfg, options{})
		way := p.way()
		p.conn.KV.Lease = nil // it panics
		for i := range 40 {
			acquireOne(t, near)
			way.trips.Store(0)
			_, err := p.Acquire(testContext(t), provider.AcquireRequest{RequestID: provider.NewSecret()})
			must.Succeed(t, err)
			if n := way.trips.Load(); n > 3 {
				t.Errorf("acquire %d: %d round trips", i, n)
			}
		}
	}
}

// clockedHost is a host with a clock that is off by so much, and jumps.
type clockedHost struct {
	*leases
	off atomic.Int64
}

// held is a grant, and when its slot may be granted again.
type held struct {
	lease lease.Lease
	end   int64
}

// Hosts with clocks that are hours apart, and jump by hours, are granted nothing that overlaps in
// slot and time: a grant begins at the recorded end of the grant before, or later.
func TestClocksThatAreApart(t *testing.T) {
	terms := of(provider.DefaultTerms(), 4, 12)
	services := provider.Services{Default: terms, Named: map[string]provider.Terms{"coarse": of(terms.WithBitSeq(9), 2, 6)}}
	cfg := etcdtest.Shared(t)
	random := rand.New(rand.NewPCG(1, 2))
	var all []*clockedHost
	var now atomic.Int64
	now.Store(snowflake.DefaultEpochMS + 1e10)
	for range 4 {
		h := &clockedHost{}
		h.leases = mustOpen(t, cfg, options{services: services, nowMS: func() int64 { return now.Load() + h.off.Load() }})
		all = append(all, h)
	}
	var grants []*held
	refused := 0
	for range 1500 {
		now.Add(random.Int64N(180_000))
		h := all[random.IntN(len(all))]
		if random.IntN(10) == 0 {
			h.off.Store(random.Int64N(4*3600_000) - 2*3600_000)
		}
		var err error
		switch {
		case random.IntN(2) == 0 || len(grants) == 0:
			var got []lease.Lease
			got, err = h.Acquire(testContext(t), provider.AcquireRequest{Service: []string{"", "coarse"}[random.IntN(2)]})
			for _, l := range got {
				grants = append(grants, &held{l, l.ReservedUntil})
			}
		default:
			g := grants[len(grants)-1-random.IntN(min(8, len(grants)))]
			if random.IntN(2) == 0 {
				at := h.off.Load() + now.Load()
				if err = h.Release(testContext(t), providertest.SignedRelease(g.lease, at)); err == nil {
					g.end = min(g.end, max(at+1, g.lease.Created))
				}
			} else {
				var longer lease.Lease
				if longer, err = provider.Extend(testContext(t), h, "", g.lease); err == nil {
					g.end = max(g.end, longer.ReservedUntil)
				}
			}
		}
		if err != nil {
			refused++
		}
	}
	for i, g := range grants {
		for _, later := range grants[i+1:] {
			if g.lease.Slot().Overlaps(later.lease.Slot()) && later.lease.Created < g.end && g.lease.Created < later.end {
				t.Errorf("%v until %d and %v until %d overlap", g.lease, g.end, later.lease, later.end)
			}
		}
	}
	if len(grants) < 100 || refused < 100 {
		t.Errorf("%d grants, and %d refusals: the test shows little", len(grants), refused)
	}
}

// Blocks hang on no lease of etcd, and are never deleted. Requests are, once their leases have ended.
func TestBlocksStayAndRequestsGo(t *testing.T) {
	cfg := etcdtest.Shared(t)
	var clock atomic.Int64
	clock.Store(snowflake.DefaultEpochMS + 1e10)
	p := mustOpen(t, cfg, options{nowMS: clock.Load})
	raw := p.conn.KV
	count := func(kind string) (n int) {
		resp, err := raw.Get(testContext(t), cfg.Prefix+"@leases/", clientv3.WithPrefix())
		must.Succeed(t, err)
		for _, kv := range resp.Kvs {
			if kv.Lease != 0 {
				t.Errorf("%s hangs on a lease of etcd", kv.Key)
			}
			if strings.HasPrefix(string(kv.Key), cfg.Prefix+"@leases/k/"+kind) {
				n++
			}
		}
		return n
	}
	acquire := func() {
		_, err := p.Acquire(testContext(t), provider.AcquireRequest{RequestID: provider.NewSecret()})
		must.Succeed(t, err)
	}
	const first = 100
	for range first {
		acquire()
	}
	blocks := count("block/")
	if n := count("request/"); n != first || blocks < 50 {
		t.Fatalf("%d requests are remembered, and %d blocks, want %d and more than 50", n, blocks, first)
	}
	clock.Add(provider.DefaultTerms().LongestMS())
	for made := 0; count("request/") > made; made++ {
		if made > 2000 {
			t.Fatalf("after %d more acquires, requests are still remembered whose leases have ended", made)
		}
		acquire()
	}
	if n := count("block/"); n < blocks {
		t.Errorf("%d blocks are left of %d", n, blocks)
	}
}
