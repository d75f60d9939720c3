package redis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Run(m)) }

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// owned closes the client with the store.
type owned struct {
	*Store
	client *redisconn.Client
}

func (o owned) Close() error { return errors.Join(o.Store.Close(), o.client.Close()) }

func open(t testing.TB, cfg redisconn.Config, o Options) (owned, error) {
	client, err := redisconn.Open(cfg)
	if err != nil {
		return owned{}, err
	}
	s, err := Open(testContext(t), client, o)
	if err != nil {
		return owned{}, errors.Join(err, client.Close())
	}
	return owned{s, client}, nil
}

// rig is one store, whose clock the test sets, on servers that come and go.
type rig struct {
	*testing.T
	clock  atomic.Int64
	cfg    redisconn.Config
	serial int
	store  owned
}

const testTime = 1_800_000_000_000

// newRig opens a store that was declared new.
func newRig(t *testing.T, s *redistest.Server, edit ...func(*redisconn.Config)) *rig {
	t.Helper()
	r := &rig{T: t, cfg: s.Config()}
	r.clock.Store(testTime)
	r.cfg.NowMS = r.clock.Load
	r.cfg.ConfirmWait = redistest.StartTimeout // a slow machine's replica is not a silent one
	for _, e := range edit {
		e(&r.cfg)
	}
	r.store = r.on(s)
	r.init()
	return r
}

// on opens the same store on another server, or with other settings.
func (r *rig) on(s *redistest.Server, edit ...func(*redisconn.Config)) owned {
	r.Helper()
	cfg := r.cfg
	cfg.Addrs = []string{s.Sock}
	for _, e := range edit {
		e(&cfg)
	}
	return r.open(cfg, Options{})
}

func (r *rig) open(cfg redisconn.Config, o Options) owned {
	r.Helper()
	s, err := open(r.T, cfg, o)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { s.Close() })
	return s
}

func (r *rig) init() {
	r.Helper()
	if err := r.store.Init(testContext(r)); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) request(op lock.Op, key, owner string, ttl time.Duration) lock.Request {
	r.serial++
	q := lock.Request{Op: op, Tenant: "t", Key: key, Owner: owner, RequestID: fmt.Sprintf("r%d", r.serial), TTLMS: ttl.Milliseconds()}
	if op == lock.Acquire {
		q.LeaseID = fmt.Sprintf("%032x", r.serial)
	}
	return q
}

func (r *rig) acquire(key string, ttl time.Duration) lock.Request {
	return r.request(lock.Acquire, key, "alice", ttl)
}

// do carries out what must succeed.
func (r *rig) do(q lock.Request) lock.Lease {
	r.Helper()
	l, err := r.store.Do(testContext(r), q)
	if err != nil {
		r.Fatalf("%v of %q: %v", q.Op, q.Key, err)
	}
	return l
}

// locked acquires and releases.
func (r *rig) locked(key string, ttl time.Duration) lock.Lease {
	r.Helper()
	l := r.do(r.acquire(key, ttl))
	r.do(r.request(lock.Release, key, "alice", 0))
	return l
}

func (r *rig) held(key string) {
	r.Helper()
	l, err := r.store.Do(testContext(r), r.request(lock.Acquire, key, "bob", time.Minute))
	var held *lock.HeldError
	if !errors.As(err, &held) {
		r.Fatalf("acquire gave %+v and the error %v, want a HeldError", l, err)
	}
}

// fenced acquires where the fence must refuse until a time.
func (r *rig) fenced(untilMS int64, why string) {
	r.Helper()
	l, err := r.store.Do(testContext(r), r.acquire("fence", time.Minute))
	var fenced *lock.FencedError
	if !errors.As(err, &fenced) {
		r.Fatalf("acquire gave %+v and the error %v, want a FencedError", l, err)
	}
	if fenced.UntilMS != untilMS || fenced.RemainingMS != untilMS-r.clock.Load() || !strings.Contains(fenced.Reason, why) ||
		!strings.Contains(fenced.Reason, "kazahanad leases init") {
		r.Fatalf("the error is %+v, %d ms from now, want one until %d ms from now because of %q", fenced, fenced.UntilMS-r.clock.Load(), untilMS-r.clock.Load(), why)
	}
}

// fencedFor expects the fence for so long, and goes past it.
func (r *rig) fencedFor(d time.Duration, why string) {
	r.Helper()
	until := r.clock.Load() + d.Milliseconds()
	r.fenced(until, why)
	r.clock.Store(until - 1)
	r.fenced(until, why)
	r.clock.Store(until)
}

const (
	whyMissing = "had no record of locks"
	whyChanged = "was restarted, or another one has taken its place"
)

// persistent has every write on disk before it is answered.
func persistent(tb testing.TB) *redistest.Server {
	return redistest.New(tb, "--appendonly", "yes", "--appendfsync", "always")
}

// pair is a primary and its replica.
func pair(t *testing.T) (primary, replica *redistest.Server) {
	primary, replica = redistest.NewWithPort(t), redistest.NewWithPort(t)
	replica.Follow(primary)
	return primary, replica
}
