package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func rawClient(t testing.TB, m *member) *clientv3.Client {
	t.Helper()
	cl, err := etcdtest.NewClient(clientv3.Config{Endpoints: []string{m.Client}})
	must.Succeed(t, err)
	t.Cleanup(func() { cl.Close() })
	return cl
}

// A database over its quota refuses everything that writes, and says so; what
// is granted stays, and can be verified.
func TestNoSpace(t *testing.T) {
	m := etcdtest.Cluster(t, 1, "http", "--quota-backend-bytes", "1048576")[0]
	p := mustOpen(t, configOf(m))
	leases, err := p.Acquire(testContext(t), provider.AcquireRequest{})
	must.Succeed(t, err)
	cl := rawClient(t, m)
	for i := 0; ; i++ {
		if _, err := cl.Put(testContext(t), fmt.Sprint("/fill", i), strings.Repeat("x", 100_000)); err != nil {
			break
		}
	}
	_, err = p.Acquire(testContext(t), provider.AcquireRequest{})
	if err == nil || !strings.Contains(err.Error(), "NOSPACE") {
		t.Errorf("Acquire: %v", err)
	}
	if lost, err := provider.Verify(testContext(t), p, "", leases); err != nil || len(lost) != 0 {
		t.Errorf("Verify: %v, %v", lost, err)
	}
}

func TestRequestTooLarge(t *testing.T) {
	m := etcdtest.Cluster(t, 1, "http", "--max-request-bytes", "8192")[0]
	p := mustOpen(t, configOf(m))
	_, err := p.Acquire(testContext(t), provider.AcquireRequest{Meta: map[string]string{"k": strings.Repeat("v", 16_000)}})
	if err == nil || !strings.Contains(err.Error(), "--max-request-bytes") {
		t.Errorf("the error is %v", err)
	}
	m = etcdtest.Cluster(t, 1, "http", "--max-txn-ops", "4")[0]
	p = mustOpen(t, configOf(m))
	_, err = p.Acquire(testContext(t), provider.AcquireRequest{})
	if err == nil || !strings.Contains(err.Error(), "--max-txn-ops") {
		t.Errorf("the error is %v", err)
	}
}

// 256 leases with the largest meta still fit, in several transactions.
func TestLargestRequest(t *testing.T) {
	services := defaultServices()
	services.Named = map[string]provider.Terms{"coarse": provider.DefaultTerms().WithBitSeq(12)}
	p := mustOpen(t, config(t, services, nil))
	if _, err := p.Acquire(testContext(t), provider.AcquireRequest{Service: "coarse"}); err != nil {
		t.Fatal(err)
	}
	req := provider.AcquireRequest{
		ThroughputPerMS: 1 << 40, RequestID: provider.NewSecret(),
		Meta: map[string]string{"k": strings.Repeat("\x01", provider.MaxMetaBytes-1)},
	}
	leases, err := p.Acquire(within(t, 30*time.Second), req)
	if err != nil || len(leases) != provider.DefaultMaxLeasesPerAcquire {
		t.Fatalf("%d leases, %v", len(leases), err)
	}
	noneTwice(t, leases)
	again, err := p.Acquire(within(t, 30*time.Second), req)
	if err != nil || len(again) != len(leases) || again[0] != leases[0] || again[255] != leases[255] {
		t.Errorf("repeated: %d leases, %v", len(again), err)
	}
}

// Between the transactions of one acquire the process dies; another one asks
// again with the same request ID. Or both go on, and agree.
func TestCrashBetweenTransactions(t *testing.T) {
	for _, dies := range []bool{true, false} {
		cfg := config(t, defaultServices(), nil)
		p, q := mustOpen(t, cfg), mustOpen(t, cfg)
		req := provider.AcquireRequest{ThroughputPerMS: 256 * 200, RequestID: provider.NewSecret()}
		a := p.acquisition(provider.DefaultTerms(), req, time.Now().UnixMilli())
		ctx := testContext(t)
		st, err := a.read(ctx)
		for ; err == nil && (st.poolRev == 0 || !st.hasLevel(8)); st, err = a.read(ctx) {
			if _, err := a.setUp(ctx, st); err != nil {
				t.Fatal(err)
			}
		}
		must.Succeed(t, err)
		found, err := a.find(ctx, st)
		must.Succeed(t, err)
		size := a.batchSize(st)
		if lost, err := a.commit(ctx, st, found[:size]); err != nil || len(lost) > 0 {
			t.Fatal(lost, err)
		}
		// The process is gone, or only slow.
		again, err := q.Acquire(ctx, req)
		if err != nil || len(again) != size {
			t.Fatalf("the same request again: %d leases, want the %d of the first transaction (%v)", len(again), size, err)
		}
		if dies {
			continue
		}
		own, err := a.grant(ctx, st, found[size:])
		if err != nil || len(own) != size || own[0] != again[0] || own[size-1] != again[size-1] {
			t.Errorf("who was slow got %d leases, want the same %d (%v)", len(own), size, err)
		}
	}
}

// The store's history is compacted at every moment; nothing but time is lost.
func TestCompaction(t *testing.T) {
	m := etcdtest.Cluster(t, 1, "http")[0]
	p := mustOpen(t, configOf(m))
	cl := rawClient(t, m)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			ctx, cancel := context.WithTimeout(context.Background(), callTime)
			if resp, err := cl.Put(ctx, "/other", ""); err == nil {
				_, _ = cl.Compact(ctx, resp.Header.Revision)
			}
			cancel()
		}
	}()
	var held []lease.Lease
	for range 100 {
		leases, err := p.Acquire(testContext(t), provider.AcquireRequest{ThroughputPerMS: 256 * 20})
		must.Succeed(t, err)
		held = append(held, leases...)
	}
	close(stop)
	<-stopped
	noneTwice(t, held)
	if records, err := p.List(testContext(t), ""); err != nil || len(records) != len(held) {
		t.Errorf("List: %d records, %v", len(records), err)
	}
}

// What somebody else wrote among the records stops grants, and is named.
func TestForeignValues(t *testing.T) {
	terms := provider.DefaultTerms()
	terms.IDs = provider.IDRange{Low: 5, End: 6}
	for name, foreign := range map[string]struct{ key, value string }{
		"no JSON":      {"slot/0000000000000500/08", "x"},
		"another slot": {"slot/0000000000000500/08", `{"id":7,"bit_seq":8}`},
		"no bit_seq":   {"level/xx", ""},
		"pool":         {"pool", "x"},
	} {
		cfg := config(t, provider.Services{Default: terms}, nil)
		p := mustOpen(t, cfg)
		cl := rawClient(t, etcdtest.SharedMember())
		key := cfg.Prefix + "default/" + foreign.key
		if _, err := cl.Put(testContext(t), key, foreign.value); err != nil {
			t.Fatal(err)
		}
		_, err := p.Acquire(testContext(t), provider.AcquireRequest{})
		if err == nil || !strings.Contains(err.Error(), foreign.key) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Requests that were answered long ago are forgotten, at about the pace at
// which new ones come; those of leases that live never are.
func TestRequestsAreForgotten(t *testing.T) {
	var clock atomic.Int64
	clock.Store(snowflake.DefaultEpochMS + 1e9)
	cfg := config(t, defaultServices(), clock.Load)
	p := mustOpen(t, cfg)
	cl := rawClient(t, etcdtest.SharedMember())
	prefix := cfg.Prefix + "default/request/"
	count := func() int64 {
		resp, err := cl.Get(testContext(t), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		must.Succeed(t, err)
		return resp.Count
	}
	acquire := func(n int) {
		for range n {
			if _, err := p.Acquire(testContext(t), provider.AcquireRequest{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	acquire(200)
	if n := count(); n != 200 {
		t.Fatalf("%d requests are remembered, want 200", n)
	}
	clock.Add((requestsKept + time.Hour).Milliseconds())
	acquire(200)
	if n := count(); n < 200 || n > 300 {
		t.Errorf("%d requests are remembered, want the last 200 and a few", n)
	}
}

// A request whose lease is extended again and again is remembered as long as that.
func TestRequestOfAnExtendedLeaseIsKept(t *testing.T) {
	var clock atomic.Int64
	clock.Store(snowflake.DefaultEpochMS + 1e9)
	terms := provider.DefaultTerms()
	terms.Term = 12 * time.Hour
	p := mustOpen(t, config(t, provider.Services{Default: terms}, clock.Load))
	acquire := func(id string) (lease.Lease, error) {
		leases, err := p.Acquire(testContext(t), provider.AcquireRequest{RequestID: id})
		if err != nil {
			return lease.Lease{}, err
		}
		return leases[0], nil
	}
	l, err := acquire("long")
	for range 3 {
		must.Succeed(t, err)
		clock.Add((10 * time.Hour).Milliseconds())
		secret := l.Secret
		l, err = provider.Extend(testContext(t), p, "", l)
		l.Secret = secret
	}
	for i := range 20 { // each looks for requests to forget
		if _, err := acquire(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if again, err := acquire("long"); err != nil || again != l {
		t.Errorf("the repeated request gave %v and the error %v, want %v", again, err, l)
	}
	clock.Add((40 * time.Hour).Milliseconds())
	// Each acquire looks at a few requests at a random place, so chance says when
	// it comes to this one. With 1,000 of them one run in millions does not see it.
	again, err := acquire("long")
	for n := 0; errors.Is(err, provider.ErrConflict) && n < 1000; n++ {
		acquireOne(t, p)
		again, err = acquire("long")
	}
	if err != nil || again.Secret == l.Secret {
		t.Errorf("the request whose lease has ended gave %v and the error %v, want another lease", again, err)
	}
}

func TestEstimate(t *testing.T) {
	s := spaceOf("/", "p")
	p := mustOpen(t, config(t, defaultServices(), nil))
	ctx := testContext(t)
	const n = 4000
	for i := 0; i < n; i += 100 {
		var ops []clientv3.Op
		for j := range 100 {
			ops = append(ops, clientv3.OpPut(p.cfg.Prefix+strings.TrimPrefix(s.request("", fmt.Sprint(i+j)), "/"), ""))
		}
		if _, err := p.conn.KV.Txn(ctx).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	prefix := p.cfg.Prefix + "p/request/"
	sum, rounds := 0.0, 200
	for range rounds {
		op, _ := around(prefix, requestSample)
		resp, err := p.conn.KV.Do(ctx, op)
		must.Succeed(t, err)
		sum += estimate(prefix, resp.Get().Kvs)
	}
	if mean := sum / float64(rounds); mean < n/2 || mean > n*4 {
		t.Errorf("%d keys are estimated to be %.0f", n, mean)
	}
}

// Somebody revoked the lease that votes hang on; slots do not hang on it.
func TestVoiceIsLost(t *testing.T) {
	p := mustOpen(t, config(t, defaultServices(), nil))
	first := []lease.Lease{acquireOne(t, p)}
	if _, err := p.conn.KV.Revoke(testContext(t), p.pool(provider.DefaultTerms()).voice.id); err != nil {
		t.Fatal(err)
	}
	p.nowMS = func() int64 { return time.Now().UnixMilli() + 2000 } // so that it votes again
	acquireOne(t, p)
	if lost, err := provider.Verify(testContext(t), p, "", first); err != nil || len(lost) > 0 {
		t.Errorf("a slot's record went with the etcd lease: %v, %v", lost, err)
	}
}
