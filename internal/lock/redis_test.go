package lock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/record/redis"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// inRedis closes the client with the store.
type inRedis struct {
	*lock.Records
	records *redis.Store
	client  *redisconn.Client
}

func (o inRedis) Close() error { return errors.Join(o.records.Close(), o.client.Close()) }

// openRedis opens a store whose longest term is maxTTL, 0 for lock.MaxTTL.
func openRedis(t testing.TB, cfg redisconn.Config, maxTTL time.Duration) (inRedis, error) {
	client, err := redisconn.Open(cfg)
	if err != nil {
		return inRedis{}, err
	}
	records := redis.New(client, redis.Options{MaxTerm: cmp.Or(maxTTL, lock.MaxTTL)})
	locks, err := lock.OnRecords(records).Limit(maxTTL)
	if err = errors.Join(err, records.Check(testContext(t))); err != nil {
		return inRedis{}, errors.Join(err, records.Close(), client.Close())
	}
	return inRedis{locks, records, client}, nil
}

// onRedis is one store on Redis, whose clock the test sets, on servers that come and go.
type onRedis struct {
	*testing.T
	clock  atomic.Int64
	cfg    redisconn.Config
	serial int
	store  inRedis
}

// newOnRedis opens a store that was declared new.
func newOnRedis(t *testing.T, s *redistest.Server, edit ...func(*redisconn.Config)) *onRedis {
	t.Helper()
	r := &onRedis{T: t, cfg: s.Config()}
	r.clock.Store(startMS)
	r.cfg.NowMS = r.clock.Load
	r.cfg.ConfirmWait = await.Patience // a slow machine's replica is not a silent one
	for _, e := range edit {
		e(&r.cfg)
	}
	r.store = r.on(s)
	r.init()
	return r
}

// on opens the same store on another server, or with other settings.
func (r *onRedis) on(s *redistest.Server, edit ...func(*redisconn.Config)) inRedis {
	r.Helper()
	cfg := r.cfg
	cfg.Addrs = []string{s.Sock}
	for _, e := range edit {
		e(&cfg)
	}
	return r.open(cfg, 0)
}

func (r *onRedis) open(cfg redisconn.Config, maxTTL time.Duration) inRedis {
	r.Helper()
	s, err := openRedis(r.T, cfg, maxTTL)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { s.Close() })
	return s
}

func (r *onRedis) init() {
	r.Helper()
	if err := r.store.records.Init(testContext(r)); err != nil {
		r.Fatal(err)
	}
}

func (r *onRedis) request(op lock.Op, key, owner string, ttl time.Duration) lock.Request {
	r.serial++
	q := lock.Request{Op: op, Tenant: "t", Key: key, Owner: owner, RequestID: fmt.Sprintf("r%d", r.serial), TTLMS: ttl.Milliseconds()}
	if op == lock.Acquire {
		q.LeaseID = fmt.Sprintf("%032x", r.serial)
	}
	return q
}

func (r *onRedis) acquire(key string, ttl time.Duration) lock.Request {
	return r.request(lock.Acquire, key, "alice", ttl)
}

// do carries out what must succeed.
func (r *onRedis) do(q lock.Request) lock.Lease {
	r.Helper()
	l, err := r.store.Do(testContext(r), q)
	if err != nil {
		r.Fatalf("%v of %q: %v", q.Op, q.Key, err)
	}
	return l
}

// locked acquires and releases.
func (r *onRedis) locked(key string, ttl time.Duration) lock.Lease {
	r.Helper()
	l := r.do(r.acquire(key, ttl))
	r.do(r.request(lock.Release, key, "alice", 0))
	return l
}

func (r *onRedis) held(key string) {
	r.Helper()
	l, err := r.store.Do(testContext(r), r.request(lock.Acquire, key, "bob", time.Minute))
	var held *lock.HeldError
	if !errors.As(err, &held) {
		r.Fatalf("acquire gave %+v and the error %v, want a HeldError", l, err)
	}
}

// fenced acquires where the fence must refuse until a time.
func (r *onRedis) fenced(untilMS int64, why string) {
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
func (r *onRedis) fencedFor(d time.Duration, why string) {
	r.Helper()
	until := r.clock.Load() + d.Milliseconds()
	r.fenced(until, why)
	r.clock.Store(until - 1)
	r.fenced(until, why)
	r.clock.Store(until)
}

const (
	whyMissing = "had no record of the store"
	whyChanged = "was restarted, or another one has taken its place"
)

// persistent has every write on disk before it is answered.
func persistent(tb testing.TB) *redistest.Server {
	return redistest.New(tb, "--appendonly", "yes", "--appendfsync", "always")
}

// redisBackend is one prefix of a server. Without a clock that can be set, the
// server's own counts, and it can be restarted.
func redisBackend(t *testing.T, server *redistest.Server, clock *atomic.Int64) locktest.Backend {
	cfg := server.Config()
	declare := func() error {
		s, err := openRedis(t, cfg, 0)
		if err != nil {
			return err
		}
		defer s.Close()
		return s.records.Init(context.Background())
	}
	b := locktest.Backend{
		Open:  func() (lock.Store, error) { return openRedis(t, cfg, 0) },
		Jumps: true,
	}
	if clock == nil {
		b.Restart = func() error {
			server.Restart()
			return declare()
		}
		b.Forget = func() error {
			server.Do(t, "FLUSHALL")
			return b.Restart()
		}
	} else {
		cfg.NowMS = clock.Load
		b.Advance = func(d time.Duration) { clock.Add(d.Milliseconds()) }
		b.Sweep = func() error {
			s, err := openRedis(t, cfg, 0)
			if err != nil {
				return err
			}
			defer s.Close()
			return sweep(s.records)
		}
		b.Forget = func() error {
			clock.Add(1000) // a loss takes a while
			server.Do(t, "FLUSHALL")
			s, err := openRedis(t, cfg, 0)
			if err != nil {
				return err
			}
			defer s.Close()
			clock.Add(lock.MaxTTL.Milliseconds()) // past the fence, which has begun
			return nil
		}
	}
	if err := declare(); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRedis(t *testing.T) {
	t.Run("a set clock", func(t *testing.T) {
		server := redistest.New(t)
		locktest.Run(t, func(t *testing.T) locktest.Backend {
			var clock atomic.Int64
			clock.Store(startMS)
			return redisBackend(t, server, &clock)
		})
	})
	t.Run("the server's clock", func(t *testing.T) {
		server := persistent(t)
		locktest.Run(t, func(t *testing.T) locktest.Backend { return redisBackend(t, server, nil) })
	})
}

// What clients see of a server that is frozen, or killed and started again, is
// what a lock can do, whatever became of the requests under way.
func TestRedisChaos(t *testing.T) {
	ring.Deep(t)
	const (
		clients  = 4
		blows    = 6
		between  = 250 * time.Millisecond
		patience = 150 * time.Millisecond // less than a freeze
	)
	for name, blow := range map[string]func(*redistest.Server){
		"frozen": func(s *redistest.Server) {
			s.Signal(syscall.SIGSTOP)
			time.Sleep(2 * patience)
			s.Signal(syscall.SIGCONT)
		},
		"killed": func(s *redistest.Server) { s.Restart() },
	} {
		t.Run(name, func(t *testing.T) {
			server := persistent(t)
			cfg := server.Config()
			cfg.FailoverFenceSet = true // what was answered is on the disk
			var stores []lock.Store
			for range clients {
				s, err := openRedis(t, cfg, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				if err := s.records.Init(testContext(t)); err != nil {
					t.Fatal(err)
				}
				stores = append(stores, s)
			}
			ctx, cancel := context.WithCancel(testContext(t))
			done := make(chan struct{})
			go func() {
				defer close(done)
				calls, unknown, err := locktest.Hammer(ctx, stores, locktest.Allowed{Jumps: true}, lock.MinTTL, patience)
				if err != nil {
					t.Error(err)
				}
				t.Logf("%d calls, of %d nobody knows the outcome", calls, unknown)
				if calls == unknown || unknown == 0 && name == "frozen" {
					t.Error("the test does not show what it should")
				}
			}()
			for range blows {
				time.Sleep(between)
				blow(server)
			}
			cancel()
			<-done
		})
	}
}

// impatient has replicas confirm soon, or not at all.
func impatient(c *redisconn.Config) { c.ConfirmWait = 100 * time.Millisecond }

func unconfirmed(t *testing.T, s inRedis, q lock.Request, words string) {
	t.Helper()
	l, err := s.Do(testContext(t), q)
	if !errors.Is(err, redisconn.ErrUnconfirmed) || lock.IsAnswer(err) || !strings.Contains(err.Error(), words) {
		t.Fatalf("%v: %+v and the error %v, want ErrUnconfirmed with %q", q.Op, l, err, words)
	}
}

// What replicas did not confirm is not answered, however often it is asked for. A lease
// that nobody can ask for again is given back.
func TestRedisUnconfirmed(t *testing.T) {
	primary, replica := redistest.Pair(t)
	r := newOnRedis(t, primary, func(c *redisconn.Config) { c.MinReplicas = 1 })
	l := r.do(r.acquire("held", time.Hour))
	replica.Signal(syscall.SIGSTOP)

	once := r.acquire("once", time.Hour)
	once.RequestID = ""
	unconfirmed(t, r.on(primary, impatient), once, "given back")
	if got, err := r.store.Get(testContext(t), "t", "once"); err != nil || got.State != lock.Released {
		t.Fatalf("the lock is %+v (%v), want it given back", got, err)
	}
	acquire := r.acquire("a", time.Hour)
	for range 2 {
		unconfirmed(t, r.on(primary, impatient), acquire, "0 of min_replicas=1")
	}
	renew := r.request(lock.Renew, "held", "alice", 2*time.Hour)
	release := r.request(lock.Release, "held", "alice", 0)
	for _, q := range []lock.Request{renew, renew, release, release} { // each on a new connection
		unconfirmed(t, r.on(primary, impatient), q, "0 of min_replicas=1")
	}

	replica.Signal(syscall.SIGCONT)
	if got := r.do(release); !got.Repeated || got.LeaseID != l.LeaseID {
		t.Errorf("the release, repeated, answers %+v", got)
	}
	if got := r.do(acquire); !got.Repeated || got.LeaseID != acquire.LeaseID {
		t.Errorf("the acquire, repeated, answers %+v, want the lease", got)
	}
	replica.Kill()
	await.Success(t, "the primary notices", func() error {
		if info := primary.Do(t, "INFO", "replication"); !strings.Contains(info, "connected_slaves:0") {
			return errors.New("not yet")
		}
		return nil
	})
	unconfirmed(t, r.store, r.acquire("b", time.Hour), "nothing was done")
	if _, err := r.store.Get(testContext(t), "t", "b"); !errors.Is(err, lock.ErrNotFound) {
		t.Errorf("without a replica there is a lock: %v", err)
	}
}
