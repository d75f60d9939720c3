package etcd

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/etcdconn"
	"github.com/kazahana/kazahana/internal/etcdconn/etcdtest"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/sequence/sequencetest"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// owned closes the client with the store.
type owned struct {
	*Store
	conn *etcdconn.Client
}

func (o owned) Close() error { return o.conn.Close() }

func open(cfg etcdconn.Config) (owned, error) {
	conn, err := etcdconn.Open(cfg)
	if err != nil {
		return owned{}, err
	}
	return owned{New(conn), conn}, nil
}

func mustOpen(t *testing.T, cfg etcdconn.Config) owned {
	t.Helper()
	s, err := open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// leaseOf is the lease that the record of a key hangs on.
func leaseOf(t *testing.T, s owned, key string) clientv3.LeaseID {
	t.Helper()
	resp, err := s.conn.KV.Get(testContext(t), s.prefix+"default/"+key)
	if err != nil || len(resp.Kvs) != 1 || resp.Kvs[0].Lease == 0 {
		t.Fatalf("%s: the record is %v (%v), want one with a lease", key, resp, err)
	}
	return clientv3.LeaseID(resp.Kvs[0].Lease)
}

func TestConformance(t *testing.T) {
	sequencetest.Run(t, func(t *testing.T) sequencetest.Target {
		cfg := etcdtest.Shared(t)
		raw := mustOpen(t, cfg)
		return sequencetest.Target{
			Open: func() (sequence.Store, error) { return open(cfg) },
			// What the cluster does when the lease's time is over.
			Expire: func(_, key string) {
				if _, err := raw.conn.KV.Revoke(testContext(t), leaseOf(t, raw, key)); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

func take(t *testing.T, s owned, o sequence.Options, want int64) {
	t.Helper()
	got, err := s.Next(testContext(t), sequence.Request{Tenant: "default", Key: "k", Count: 1, Options: o})
	if err != nil || got.First != want {
		t.Errorf("%v (%v), want %d", got, err, want)
	}
}

// A key's lease lasts for the TTL from each use on, and not much longer.
func TestUseKeepsTheLeaseAlive(t *testing.T) {
	cfg := etcdtest.Shared(t)
	s, other := mustOpen(t, cfg), mustOpen(t, cfg)
	o := sequence.DefaultOptions()
	o.TTL = 10 * time.Second
	left := func() int64 {
		t.Helper()
		resp, err := s.conn.KV.TimeToLive(testContext(t), leaseOf(t, s, "k"))
		if err != nil {
			t.Fatal(err)
		}
		return resp.TTL
	}
	take(t, s, o, 1)
	first := leaseOf(t, s, "k")
	if n := left(); n < 10 || n > 15 {
		t.Errorf("the lease has %d s left, want the TTL of 10 s and a fifth", n)
	}
	// As time passes, which the server tells in whole seconds.
	deadline := time.Now().Add(30 * time.Second)
	for left() > 11 && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond)
	}
	take(t, other, o, 2) // it did not see the lease being made
	if n := left(); n < 12 {
		t.Errorf("after another use the lease has %d s left", n)
	}
	if leaseOf(t, s, "k") != first {
		t.Error("each use makes a lease")
	}
	// What it knows is of a key that is gone.
	if _, err := s.conn.KV.Revoke(testContext(t), first); err != nil {
		t.Fatal(err)
	}
	take(t, other, o, 1)
	take(t, s, o, 2)
}

func TestDamagedRecord(t *testing.T) {
	s := mustOpen(t, etcdtest.Shared(t))
	path := s.prefix + "default/k"
	for _, value := range []string{"", "{}", `{"options":"step=1","last":1}`, `{"options":"step=1 start=1 max_value=0 on_max=reset ttl_ms=0","last":"1"}`} {
		if _, err := s.conn.KV.Put(testContext(t), path, value); err != nil {
			t.Fatal(err)
		}
		got, err := s.Next(testContext(t), sequence.Request{Tenant: "default", Key: "k", Count: 1, Options: sequence.DefaultOptions()})
		if err == nil || sequence.IsAnswer(err) {
			t.Errorf("of %q came %v (%v)", value, got, err)
		}
	}
}

func TestClosed(t *testing.T) {
	s := mustOpen(t, etcdtest.Shared(t))
	take(t, s, sequence.DefaultOptions(), 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := s.Next(testContext(t), sequence.Request{Tenant: "default", Key: "k", Count: 1, Options: sequence.DefaultOptions()})
	if !errors.Is(err, etcdconn.ErrClosed) {
		t.Errorf("the error is %v, want ErrClosed", err)
	}
}

// A declaration that changes the TTL changes what the record hangs on.
func TestDeclaredTTL(t *testing.T) {
	s := mustOpen(t, etcdtest.Shared(t))
	short, long := sequence.DefaultOptions(), sequence.DefaultOptions()
	short.TTL, long.TTL = time.Minute, time.Hour
	take(t, s, short, 1)
	for _, o := range []sequence.Options{long, sequence.DefaultOptions()} {
		if err := s.Declare(testContext(t), sequence.Declaration{Tenant: "default", Key: "k", Options: o, Last: 1}); err != nil {
			t.Fatal(err)
		}
		take(t, s, o, 2)
		resp, err := s.conn.KV.Get(testContext(t), s.prefix+"default/k")
		if err != nil {
			t.Fatal(err)
		}
		id := clientv3.LeaseID(resp.Kvs[0].Lease)
		if o.TTL == 0 {
			if id != 0 {
				t.Error("a key without TTL will be removed")
			}
			continue
		}
		if ttl, err := s.conn.KV.TimeToLive(testContext(t), id); err != nil || ttl.TTL < 3600 {
			t.Errorf("the lease has %v (%v), want more than an hour", ttl, err)
		}
	}
}

func BenchmarkStore(b *testing.B) {
	conn, err := etcdconn.Open(etcdtest.Shared(b))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	sequencetest.Benchmark(b, New(conn))
}
