package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	etcdconn "github.com/kazahana/kazahana/internal/conn/etcd"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
)

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// owned closes the client with the store.
type owned struct {
	*Store
	conn *etcdconn.Client
}

func (o owned) Close() error { return errors.Join(o.Store.Close(), o.conn.Close()) }

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

// sweepAll deletes every record that is idle by the store's clock.
func sweepAll(s owned) error {
	for {
		end, err := s.sweep(context.Background())
		if err != nil || end {
			return err
		}
	}
}

// ahead has the store's host think that it is later.
func ahead(s owned, d time.Duration) { s.nowMS = func() int64 { return time.Now().Add(d).UnixMilli() } }

func TestConformance(t *testing.T) {
	locktest.Run(t, func(t *testing.T) locktest.Backend {
		cfg := etcdtest.Shared(t)
		return locktest.Backend{
			Open: func() (lock.Store, error) { return open(cfg) },
			Restart: func() error {
				m := etcdtest.SharedMember()
				m.Kill()
				if err := m.Start(); err != nil {
					return err
				}
				return etcdtest.Writable(m)
			},
			Sweep: func() error {
				s, err := open(cfg)
				if err != nil {
					return err
				}
				defer s.Close()
				ahead(s, lock.MaxTTL+lock.KeepIdle)
				return sweepAll(s)
			},
			MinTTL:  2 * time.Second,
			NoClock: true,
		}
	})
}

// rig is one store with the requests of a test.
type rig struct {
	*testing.T
	store  owned
	cfg    etcdconn.Config
	serial int
}

func newRig(t *testing.T) *rig {
	cfg := etcdtest.Shared(t)
	return &rig{T: t, store: mustOpen(t, cfg), cfg: cfg}
}

func (r *rig) request(op lock.Op, key string, ttl time.Duration) lock.Request {
	r.serial++
	q := lock.Request{Op: op, Tenant: "t", Key: key, Owner: "alice", RequestID: fmt.Sprintf("r%d", r.serial), TTLMS: ttl.Milliseconds()}
	if op == lock.Acquire {
		q.LeaseID = fmt.Sprintf("%032x", r.serial)
	}
	return q
}

func (r *rig) do(q lock.Request) lock.Lease {
	r.Helper()
	l, err := r.store.Do(testContext(r), q)
	if err != nil {
		r.Fatalf("%v of %q: %v", q.Op, q.Key, err)
	}
	return l
}

// locked acquires and releases.
func (r *rig) locked(key string) lock.Lease {
	r.Helper()
	l := r.do(r.request(lock.Acquire, key, time.Minute))
	r.do(r.request(lock.Release, key, 0))
	return l
}

func (r *rig) held(s owned, key string) *lock.HeldError {
	r.Helper()
	l, err := s.Do(testContext(r), r.request(lock.Acquire, key, time.Minute))
	var held *lock.HeldError
	if !errors.As(err, &held) {
		r.Fatalf("acquire gave %+v and the error %v, want a HeldError", l, err)
	}
	return held
}
