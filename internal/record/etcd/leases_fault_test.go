package etcd_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/proxytest"
)

func rawClient(t testing.TB, m *member) *clientv3.Client {
	t.Helper()
	cl, err := etcdtest.NewClient(clientv3.Config{Endpoints: []string{m.Client}})
	must.Succeed(t, err)
	t.Cleanup(func() { cl.Close() })
	return cl
}

// proxied is the shared server with a proxy in front, and the configuration for it.
func proxied(t *testing.T, cfg etcdconn.Config) (*proxytest.Proxy, etcdconn.Config) {
	proxy := proxytest.New(t, "tcp", cfg.Endpoints[0])
	cfg.Endpoints = []string{proxy.Addr()}
	return proxy, cfg
}

// The secret of a lease goes to etcd and back at no time.
func TestSecretIsNotOnTheWire(t *testing.T) {
	cfg := etcdtest.Shared(t)
	acquireOne(t, mustOpen(t, cfg, options{}))
	proxy, far := proxied(t, cfg)
	p := mustOpen(t, far, options{})
	acquire := func() lease.Lease {
		t.Helper()
		got, err := p.Acquire(testContext(t), provider.AcquireRequest{RequestID: "r"})
		must.Succeed(t, err)
		return got[0]
	}
	l := acquire()
	for range 3 {
		lost, err := provider.Verify(testContext(t), p, "", []lease.Lease{l})
		if err != nil || len(lost) > 0 {
			t.Fatalf("Verify: %v, %v", lost, err)
		}
	}
	renewed := acquireOne(t, p)
	if acquire() != l {
		t.Error("the request that is repeated has another lease")
	}
	_, err := provider.Extend(testContext(t), p, "", l)
	must.Succeed(t, err)
	release := providertest.SignedRelease(l, time.Now().UnixMilli())
	must.Succeed(t, errors.Join(p.Release(testContext(t), release), p.Release(testContext(t), release)))
	for _, l := range []lease.Lease{l, renewed} {
		secret, err := hex.DecodeString(l.Secret)
		must.Succeed(t, err)
		if proxy.Count(l.Secret)+proxy.Count(string(secret)) > 0 || len(secret) < 16 { // seed 000-4.5-1
			t.Errorf("the secret of %v was on the wire", l)
		}
	}
	if proxy.Count("@leases/k/block/") < 10 {
		t.Error("the proxy has seen next to nothing")
	}
}

func TestReleaseOnABadNetwork(t *testing.T) {
	cfg := etcdtest.Shared(t)
	proxy, far := proxied(t, cfg)
	providertest.RunRemote(t, providertest.Remote{
		Proxy: proxy, Near: mustOpen(t, cfg, options{}), LooksUp: true, Repeats: true,
		Open:    func() (provider.Provider, error) { return open(far, options{}) },
		Sending: func(p provider.Provider, f func()) { p.(*leases).way().beforeCommit(f) },
		Mark:    "}\n\x01", // where a header and a block meet
	})
}

// A database over its quota refuses all that writes, and says so. Granted leases stay, and can be
// verified.
func TestLeasesWithoutSpace(t *testing.T) {
	m := etcdtest.Cluster(t, 1, "http", "--quota-backend-bytes", "1048576")[0]
	p := mustOpen(t, configOf(m), options{})
	l := acquireOne(t, p)
	cl := rawClient(t, m)
	for i := 0; ; i++ {
		if _, err := cl.Put(testContext(t), fmt.Sprint("/fill", i), strings.Repeat("x", 100_000)); err != nil {
			break
		}
	}
	if _, err := p.Acquire(testContext(t), provider.AcquireRequest{}); err == nil || !strings.Contains(err.Error(), "NOSPACE") {
		t.Errorf("Acquire: %v", err)
	}
	if lost, err := provider.Verify(testContext(t), p, "", []lease.Lease{l}); err != nil || len(lost) != 0 {
		t.Errorf("Verify: %v, %v", lost, err)
	}
}

func TestLimitsOfTheServerAreNamed(t *testing.T) {
	for option, value := range map[string]string{"--max-request-bytes": "8192", "--max-txn-ops": "4"} {
		p := mustOpen(t, configOf(etcdtest.Cluster(t, 1, "http", option, value)[0]), options{})
		_, err := p.Acquire(testContext(t), provider.AcquireRequest{Meta: map[string]string{"k": strings.Repeat("v", 16_000)}})
		if err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("%s: %v", option, err)
		}
	}
}

// A cluster is restored from an older state, under the same name. Its revisions come once more:
// a process that has gone on meanwhile does not take another's block for the block that it knows.
func TestLeasesInARestoredCluster(t *testing.T) {
	m := etcdtest.Cluster(t, 1, "http")[0]
	cfg := configOf(m)
	o := options{services: provider.Services{Default: of(provider.DefaultTerms(), 0, 4)}, random: func(int64) int64 { return 0 }}
	p, q := mustOpen(t, cfg, o), mustOpen(t, cfg, o)
	acquireOne(t, p) // the pool is there
	revision := func() int64 {
		resp, err := rawClient(t, m).Get(testContext(t), cfg.Prefix+"@leases/k/block/", clientv3.WithPrefix())
		must.Succeed(t, err)
		return resp.Kvs[0].ModRevision
	}
	m.Kill()
	before := t.TempDir()
	must.Succeed(t, m.Save(before))
	must.Succeed(t, m.Start())
	eventually(t, "the server is back", p.Ready)
	acquireOne(t, p)
	known := revision()
	m.Kill()
	must.Succeed(t, m.PutBack(before))
	must.Succeed(t, m.Start())
	eventually(t, "the older server is there", q.Ready)
	l := acquireOne(t, q)
	if now := revision(); now != known {
		t.Fatalf("the block is of revision %d, and was of %d: the test shows nothing", now, known)
	}
	eventually(t, "the process has found it", func(ctx context.Context) error {
		got, err := p.Acquire(ctx, provider.AcquireRequest{})
		if err == nil && got[0].ID == l.ID {
			t.Errorf("machine ID %d was granted twice", l.ID)
		}
		return err
	})
	if lost, err := provider.Verify(testContext(t), q, "", []lease.Lease{l}); err != nil || len(lost) > 0 {
		t.Errorf("the lease of %d was overwritten (%v)", l.ID, err)
	}
}

// A cluster is restored from an older state, and an operator fences it: neither a process that has
// gone on meanwhile nor another one is granted the machine ID of a lease that is missing.
func TestFenceOfARestoredCluster(t *testing.T) {
	m := etcdtest.Cluster(t, 1, "http")[0]
	o := options{services: provider.Services{Default: of(provider.DefaultTerms(), 0, 1)}}
	p, q := mustOpen(t, configOf(m), o), mustOpen(t, configOf(m), o)
	giveBack(t, p, acquireOne(t, p))
	m.Kill()
	before := t.TempDir()
	must.Succeed(t, m.Save(before))
	must.Succeed(t, m.Start())
	eventually(t, "the server is back", p.Ready)
	lost := acquireOne(t, p)
	m.Kill()
	must.Succeed(t, m.PutBack(before))
	must.Succeed(t, m.Start())
	eventually(t, "the older server is there", q.Ready)
	fenced, err := q.Fence(testContext(t))
	if err != nil || fenced.UntilMS < lost.ReservedUntil {
		t.Fatalf("the fence is %v (%v), and a lease is missing that ends at %d", fenced, err, lost.ReservedUntil)
	}
	for _, p := range []provider.Provider{p, q, mustOpen(t, configOf(m), o)} {
		if got, err := p.Acquire(testContext(t), provider.AcquireRequest{}); !errors.As(err, new(*provider.FencedError)) {
			t.Errorf("%v was granted (%v)", got, err)
		}
		if gone, err := provider.Verify(testContext(t), p, "", []lease.Lease{lost}); err != nil || len(gone) > 0 {
			t.Errorf("Verify: %v, %v", gone, err)
		}
	}
	must.Succeed(t, q.Init(testContext(t), ""))
	acquireOne(t, p)
}
