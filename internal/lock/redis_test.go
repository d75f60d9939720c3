package lock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/redis"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// area is the area of the records in tests.
var area = record.Area{Name: "store", MaxGrantMS: lock.MaxTTL.Milliseconds()}

// inRedis closes the client with the store.
type inRedis struct {
	*lock.Records
	records *redis.Store
	client  *redisconn.Client
}

func (o inRedis) Close() error { return errors.Join(o.records.Close(), o.client.Close()) }

func openRedis(cfg redisconn.Config) (inRedis, error) {
	client, err := redisconn.Open(cfg)
	if err != nil {
		return inRedis{}, err
	}
	records := redis.New(client, area)
	return inRedis{lock.OnRecords(records), records, client}, nil
}

// mustOpenRedis opens a store until the end of the test. With declare it says first that
// the store is new.
func mustOpenRedis(t *testing.T, cfg redisconn.Config, declare bool) inRedis {
	t.Helper()
	s, err := openRedis(cfg)
	if err == nil && declare {
		err = s.records.Init(testContext(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// persistent has every write on disk before it is answered.
func persistent(tb testing.TB) *redistest.Server {
	return redistest.New(tb, "--appendonly", "yes", "--appendfsync", "always")
}

func TestRedis(t *testing.T) {
	server := persistent(t)
	locktest.Run(t, func(t *testing.T) locktest.Backend {
		cfg := server.Config()
		declared := mustOpenRedis(t, cfg, true)
		return locktest.Backend{
			Open:    func() (lock.Store, error) { return openRedis(cfg) },
			Restart: func() error { server.Restart(); return declared.records.Init(testContext(t)) },
			Jumps:   true,
		}
	})
}

// Clients of a server that is frozen, or killed and started again, see one lock, with any outcome
// of the requests under way.
func TestRedisChaos(t *testing.T) {
	ring.Deep(t)
	const (
		clients  = 4
		blows    = 6
		some     = 50 // calls before each
		patience = 150 * time.Millisecond
	)
	for name, blow := range map[string]func(*redistest.Server, *outcomes){
		"frozen": func(s *redistest.Server, seen *outcomes) {
			s.Signal(syscall.SIGSTOP)
			more(t, &seen.unknown, 1)
			s.Signal(syscall.SIGCONT)
		},
		"killed": func(s *redistest.Server, _ *outcomes) { s.Restart() },
	} {
		t.Run(name, func(t *testing.T) {
			server := persistent(t)
			cfg := server.Config()
			cfg.FailoverFenceSet = true // answered changes are on the disk
			var stores []lock.Store
			var seen outcomes
			for range clients {
				stores = append(stores, watched{mustOpenRedis(t, cfg, true), &seen})
			}
			hammered(t, stores, locktest.Allowed{Jumps: true}, lock.MinTTL, patience, func() {
				for range blows {
					more(t, &seen.answers, some)
					blow(server, &seen)
				}
				more(t, &seen.answers, some)
			})
		})
	}
}

// hammered has clients use the stores while the test does harm, and judges what they saw.
func hammered(t *testing.T, stores []lock.Store, allowed locktest.Allowed, short, patience time.Duration, harm func()) (unknown int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	var calls int
	go func() {
		var err error
		calls, unknown, err = locktest.Hammer(ctx, stores, allowed, short, patience)
		done <- err
	}()
	defer func() { // also where the harm ends the test
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		t.Logf("%d calls, %d of them with an unknown outcome", calls, unknown)
	}()
	harm()
	return
}

// outcomes counts the calls of all clients.
type outcomes struct{ answers, unknown atomic.Int64 }

// watched notes what becomes of the calls.
type watched struct {
	lock.Store
	seen *outcomes
}

func (w watched) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	l, err := w.Store.Do(ctx, r)
	if lock.IsAnswer(err) {
		w.seen.answers.Add(1)
	} else {
		w.seen.unknown.Add(1)
	}
	return l, err
}

// more returns when so many more have been counted.
func more(t *testing.T, count *atomic.Int64, n int64) {
	t.Helper()
	enough := count.Load() + n
	await.Eventually(t, "calls go on", func() bool { return count.Load() >= enough })
}

// lasting asks again until there is an answer, as a program does during a failover.
type lasting struct {
	lock.Store
	answers *atomic.Int64
}

func (l lasting) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	return l.until(ctx, func() (lock.Lease, error) { return l.Store.Do(ctx, r) })
}

func (l lasting) Get(ctx context.Context, tenant, key string) (lock.Lease, error) {
	return l.until(ctx, func() (lock.Lease, error) { return l.Store.Get(ctx, tenant, key) })
}

func (l lasting) until(ctx context.Context, ask func() (lock.Lease, error)) (lock.Lease, error) {
	for {
		lease, err := ask()
		if lock.IsAnswer(err) {
			l.answers.Add(1)
		}
		if lock.IsAnswer(err) || ctx.Err() != nil {
			return lease, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestFailoverHistory: the primary is killed while clients use locks, and its
// sentinels promote a replica. With what min_replicas had confirmed, and nothing
// else, the new primary goes on as one lock does. Only looks and refusals before may
// have spoken of more.
func TestFailoverHistory(t *testing.T) {
	const clients, some = 4, 100 // calls before the failover, and after it
	primary, heir := redistest.NewWithPort(t), redistest.NewWithPort(t)
	heir.Follow(primary)
	redistest.NewWithPort(t, "--replica-priority", "0").Follow(primary) // never the heir
	heirs := redistest.NewWithPort(t)                                   // so that the heir has two replicas, too
	heirs.Do(t, "REPLICAOF", "127.0.0.1", heir.Port)
	await.Success(t, "the replica of the replica is in step", func() error {
		if info := heirs.Do(t, "INFO", "replication"); !strings.Contains(info, "master_link_status:up") {
			return errors.New(info)
		}
		return nil
	})
	cfg := redisconn.Config{
		Scheme: "redis+sentinel", Addrs: redistest.Sentinels(t, primary, 2, "", ""), Master: redistest.SentinelSet, Prefix: "{failover}:",
		MinReplicas: 2, FailoverFenceSet: true, // the heir has all answered changes
	}
	var stores []lock.Store
	var answers atomic.Int64
	var killed atomic.Bool
	forgets := func() bool { return !killed.Load() }
	for i := range clients {
		stores = append(stores, lasting{mustOpenRedis(t, cfg, i == 0), &answers})
	}
	unknown := hammered(t, stores, locktest.Allowed{Jumps: true, Resends: true, Forgets: forgets}, lock.MinTTL, await.Patience, func() {
		more(t, &answers, some)
		redistest.Impatient(t, cfg.Addrs)
		primary.Kill()
		killed.Store(true)
		more(t, &answers, some)
	})
	if info := heir.Do(t, "INFO", "replication"); unknown > 0 || !strings.Contains(info, "role:master") {
		t.Errorf("%d calls had no answer, and the replica that should be promoted is %s", unknown, info)
	}
}

// A lock takes at most 2 KB on the server: with owners and request IDs as long as they may be,
// each request of another owner and another lease, and as many as are remembered.
func TestRedisMemory(t *testing.T) {
	server := redistest.New(t)
	cfg := server.Config()
	cfg.Prefix = redisconn.DefaultPrefix
	s := mustOpenRedis(t, cfg, true)
	used := func(key string) int {
		t.Helper()
		n, err := strconv.Atoi(server.Do(t, "MEMORY", "USAGE", "{kazahana}:@store/lock/default/"+key+"\x1f"))
		must.Succeed(t, err)
		return n
	}
	do := func(op lock.Op, key, owner, requestID string) {
		t.Helper()
		r := lock.Request{Op: op, Tenant: "default", Key: key, Owner: owner, RequestID: requestID}
		if op == lock.Acquire {
			r.LeaseID = lock.NewLeaseID()
		}
		if op != lock.Release {
			r.TTLMS = lock.MaxTTL.Milliseconds()
		}
		_, err := s.Do(t.Context(), r)
		must.Succeed(t, err)
	}
	for range 3 {
		do(lock.Acquire, "plain", "alice", "")
		do(lock.Renew, "plain", "alice", "")
		do(lock.Release, "plain", "alice", "")
	}
	if n := used("plain"); n > 184 {
		t.Errorf("a lock without request IDs takes %d bytes", n)
	}
	for i := range 2 * lock.MaxReceipts {
		owner := fmt.Sprintf("%0128d", i)
		for _, op := range []lock.Op{lock.Acquire, lock.Renew, lock.Release} {
			do(op, "full", owner, fmt.Sprintf("%0128d", 3*i+int(op)))
		}
	}
	if n := used("full"); n > 2048 {
		t.Errorf("a lock with all that it remembers takes %d bytes", n)
	} else {
		t.Logf("%d bytes without request IDs, %d with all", used("plain"), n)
	}
}
