package lock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

const (
	failoverClients = 4
	// Each client of a Hammer makes six calls a round: this is in the middle of one.
	failoverCall  = 3*6 + 3
	failoverAfter = 4 * 6 // calls of the first client, once it has happened
)

// lasting asks again until there is an answer, as a program does during a failover.
type lasting struct{ lock.Store }

func (l lasting) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	return l.until(ctx, func() (lock.Lease, error) { return l.Store.Do(ctx, r) })
}

func (l lasting) Get(ctx context.Context, tenant, key string) (lock.Lease, error) {
	return l.until(ctx, func() (lock.Lease, error) { return l.Store.Get(ctx, tenant, key) })
}

func (l lasting) until(ctx context.Context, ask func() (lock.Lease, error)) (lock.Lease, error) {
	for {
		lease, err := ask()
		if lock.IsAnswer(err) || ctx.Err() != nil {
			return lease, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// striking does something before certain calls of one client.
type striking struct {
	lock.Store
	calls  int
	before map[int]func()
}

func (s *striking) count() {
	if s.calls++; s.before[s.calls] != nil {
		s.before[s.calls]()
	}
}

func (s *striking) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	s.count()
	return s.Store.Do(ctx, r)
}

func (s *striking) Get(ctx context.Context, tenant, key string) (lock.Lease, error) {
	s.count()
	return s.Store.Get(ctx, tenant, key)
}

// TestFailoverHistory: the primary is killed while clients use locks, and its
// sentinels promote a replica. With what min_replicas had confirmed, and nothing
// else, the new primary goes on as one lock does.
func TestFailoverHistory(t *testing.T) {
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
	addrs := redistest.Sentinels(t, primary, 2, "", "")
	cfg := redisconn.Config{
		Scheme: "redis+sentinel", Addrs: addrs, Master: redistest.SentinelSet, Prefix: "{failover}:",
		MinReplicas: 2, FailoverFenceSet: true, // whatever was answered, the heir has
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stores []lock.Store
	for i := range failoverClients {
		s, err := openRedis(t, cfg, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if i == 0 {
			if err := s.records.Init(testContext(t)); err != nil {
				t.Fatal(err)
			}
		}
		stores = append(stores, lasting{s})
	}
	first := &striking{Store: stores[0], before: map[int]func(){failoverCall: primary.Kill, failoverCall + failoverAfter: cancel}}
	stores[0] = first
	calls, unknown, err := locktest.Hammer(ctx, stores, locktest.Allowed{Jumps: true, Resends: true}, lock.MinTTL, await.Patience)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d calls, of %d nobody knows the outcome", calls, unknown)
	if first.calls < failoverCall+failoverAfter || unknown > 0 {
		t.Errorf("the clients came to call %d, and %d had no answer: the test does not show what it should", first.calls, unknown)
	}
	if info := heir.Do(t, "INFO", "replication"); !strings.Contains(info, "role:master") {
		t.Errorf("the replica was not promoted: %s", info)
	}
}

// either is the store on one server, and after the failover that on another.
type either struct {
	lock.Store
	heir lock.Store
	over *atomic.Bool
}

func (e either) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if e.over.Load() {
		return e.heir.Do(ctx, r)
	}
	return e.Store.Do(ctx, r)
}

func (e either) Get(ctx context.Context, tenant, key string) (lock.Lease, error) {
	if e.over.Load() {
		return e.heir.Get(ctx, tenant, key)
	}
	return e.Store.Get(ctx, tenant, key)
}

// TestForgetfulFailoverIsSeen: without min_replicas and without a fence, a replica
// that was behind makes histories that no lock has. They are found out.
func TestForgetfulFailoverIsSeen(t *testing.T) {
	const tries = 30
	servers := [2]*redistest.Server{redistest.NewWithPort(t), redistest.NewWithPort(t)}
	var stores [2][]lock.Store
	for i, server := range servers {
		cfg := server.Config()
		cfg.Prefix, cfg.FailoverFenceSet = "{forgetful}:", true
		for range failoverClients {
			s, err := openRedis(t, cfg, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.records.Init(testContext(t)); err != nil {
				t.Fatal(err)
			}
			stores[i] = append(stores[i], s)
		}
	}
	for try := range tries {
		from, to := try%2, 1-try%2
		servers[to].Follow(servers[from])
		ctx, cancel := context.WithCancel(testContext(t))
		over := &atomic.Bool{}
		var clients []lock.Store
		for i := range failoverClients {
			clients = append(clients, either{stores[from][i], stores[to][i], over})
		}
		clients[0] = &striking{Store: clients[0], before: map[int]func(){
			2: servers[to].Promote, // from here on it is behind
			4: func() { over.Store(true); cancel() },
		}}
		_, _, err := locktest.Hammer(ctx, clients, locktest.Allowed{Jumps: true, Resends: true}, lock.MinTTL, await.Patience)
		cancel()
		if err != nil {
			if !strings.Contains(err.Error(), "no lock behaves like") {
				t.Fatal(err)
			}
			return
		}
	}
	t.Errorf("%d failovers that forgot what was granted were accepted", tries)
}
