package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
)

// chaosLocks is a scenario of locks and sequences: clients use them at a lease server that is killed
// again and again.
type chaosLocks struct {
	store   func(c *chaos) (url string)
	allowed locktest.Allowed // what the history of a lock may show with that store
	short   time.Duration    // the shortest term that it keeps
}

const (
	// lockClients use locks at the same time, and lockCounters take values of each sequence.
	lockClients   = 6
	lockCounters  = 4
	lockSequences = 4
	// lockCall is how long one call may take, and lockRest the pause after a call without an answer.
	lockCall = 3 * time.Second
	lockRest = 25 * time.Millisecond
	// lockAway is how long the server is away at most.
	lockAway = 2 * time.Second
	// lockSome is how many answers show that clients go on.
	lockSome = 50
)

func (c *chaos) locksInSQLite() string { return "sqlite:" + c.Path("locks.db") }

func (c *chaos) locksInRedis() string { return c.Initialised(c.StartRedis().URL()) }

func (c *chaos) locksInEtcd() string { return etcdURL(etcdtest.Cluster(c.T, 3, "http")) }

func (c *chaos) locksInPostgres() string { return postgrestest.New(c.T).URL() }

// restingLocks are locks as a client uses them, which rests after a call without an answer.
type restingLocks struct {
	lock.Store
	answers *atomic.Int64
}

func (r restingLocks) Do(ctx context.Context, request lock.Request) (lock.Lease, error) {
	l, err := r.Store.Do(ctx, request)
	r.rest(err)
	return l, err
}

func (r restingLocks) Get(ctx context.Context, tenant, key string) (lock.Lease, error) {
	l, err := r.Store.Get(ctx, tenant, key)
	r.rest(err)
	return l, err
}

func (r restingLocks) rest(err error) {
	if lock.IsAnswer(err) {
		r.answers.Add(1)
	} else {
		time.Sleep(lockRest)
	}
}

// countedValues are the values that callers got of sequences.
type countedValues struct {
	mu     sync.Mutex
	values map[string][]int64 // by key
	faults []string
}

func (v *countedValues) fault(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.faults = append(v.faults, fmt.Sprintf(format, args...))
}

// count takes values of a key until ctx is done. They ascend, and a call that comes again after its
// answer gets the same ones.
func (v *countedValues) count(ctx context.Context, from sequence.Store, key string, random *rand.Rand) {
	for last := int64(0); ctx.Err() == nil; time.Sleep(lockRest) {
		r := sequence.Request{Tenant: "default", Key: key, Count: 1 + random.IntN(20), RequestID: sequence.NewRequestID(), Options: sequence.DefaultOptions()}
		got, err := next(from, r)
		if err == nil && random.IntN(8) == 0 {
			var again sequence.Range
			if again, err = next(from, r); err == nil && again != got {
				v.fault("%s: one call got %v, and when it came again %v", key, got, again)
			}
		}
		if err != nil || got.First <= last {
			v.fault("%s: %v after %d: %v", key, got, last, err)
			return
		}
		last = got.Last()
		v.mu.Lock()
		v.values[key] = append(v.values[key], got.Values()...)
		v.mu.Unlock()
	}
}

// next makes a call until it has an answer. Its request ID stays, so the key hands out its values once.
func next(from sequence.Store, r sequence.Request) (got sequence.Range, err error) {
	for deadline := time.Now().Add(await.Patience); time.Now().Before(deadline); time.Sleep(lockRest) {
		ctx, cancel := context.WithTimeout(context.Background(), lockCall)
		got, err = from.Next(ctx, r)
		cancel()
		if err == nil || sequence.IsAnswer(err) {
			break
		}
	}
	return got, err
}

// check says what must not be: together all calls got each value from the first to the last once.
func (v *countedValues) check() (taken int, violations []string) {
	violations = v.faults
	for key, values := range v.values {
		taken += len(values)
		slices.Sort(values)
		for i, value := range values {
			if value != int64(i+1) {
				violations = append(violations, fmt.Sprintf("%s: in order, value %d is %d: a value came twice, or is missing", key, i+1, value))
				break
			}
		}
	}
	return taken, violations
}

// performLocks is perform for a scenario of locks. The history of each lock is judged as the
// conformance suite does it: the answers must be those of one lock.
func (c *chaos) performLocks(t *testing.T, s chaosScenario) (row string, violations []string) {
	t.Helper()
	kills, lasts := 1, 3*time.Second
	if *chaosFull {
		kills, lasts = 6, *chaosUse
	}
	c.begin(t, s, fmt.Sprintf("terms of %v and more", s.locks.short))
	args := []string{"--provider", "sqlite:" + c.Leases(), "--store", s.locks.store(c), "--rate-limit", "0"}
	server := c.StartLeaseServer(testkit.FreeAddress(t), args...)
	var answers atomic.Int64
	var clients []lock.Store
	open := func() *backend.Store {
		store, err := backend.OpenStore(server.URL(), backend.StoreOptions{})
		must.Succeed(t, err)
		t.Cleanup(func() { _ = store.Close() })
		return store
	}
	for range lockClients {
		clients = append(clients, restingLocks{open().Locks, &answers})
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	values := &countedValues{values: map[string][]int64{}}
	var calls, unknown int
	var broken error // once over is closed
	over := make(chan struct{})
	var users sync.WaitGroup
	users.Go(func() {
		defer close(over)
		calls, unknown, broken = locktest.Hammer(ctx, clients, s.locks.allowed, s.locks.short, lockCall)
	})
	for i := range lockSequences * lockCounters {
		from, random := open().Sequences, rand.New(rand.NewPCG(c.rng.Uint64(), 0))
		users.Go(func() { values.count(ctx, from, fmt.Sprint("sequence-", i%lockSequences), random) })
	}
	defer users.Wait()
	defer stop()
	c.say("%d clients acquire, renew and release locks, and %d take values of %d sequences", lockClients, lockSequences*lockCounters, lockSequences)
	more := func() {
		enough := answers.Load() + lockSome
		await.Eventually(t, "the clients go on", func() bool {
			select {
			case <-over: // the history is broken
				return true
			default:
				return answers.Load() >= enough
			}
		})
	}
	more()
	for range kills {
		c.pause(lasts / time.Duration(kills+1) * 5 / 6) // and a fifth of that more, at most
		server.Kill()
		away := time.Duration(c.rng.Int64N(int64(lockAway)))
		testkit.Pause(t, away)
		server = c.StartLeaseServer(server.Address, args...)
		c.say("killed the lease server with -9, and started it again after %v", away.Round(time.Millisecond))
		more()
	}
	stop()
	users.Wait()
	taken, violations := values.check()
	if broken != nil {
		violations = append(violations, "a lock: "+broken.Error())
	}
	if taken == 0 || calls == unknown {
		t.Errorf("it tested nothing: %d calls, %d without an answer, %d values", calls, unknown, taken)
	}
	c.say("judged %d calls of locks, %d of which had no answer, as those of one lock for each key; no two callers got one of %d values", calls, unknown, taken)
	found := findings{violations: violations}
	return fmt.Sprintf("%s\t%d\t%d\t%d\t%s\t", s.name, calls, unknown, taken, found.verdict()), violations
}

// TestCountedValues: the checker finds a value that came twice, and one that is missing.
func TestCountedValues(t *testing.T) {
	for want, values := range map[string][]int64{"": {3, 1, 2}, "value 3 is 2": {1, 2, 2}, "value 2 is 3": {1, 3}} {
		_, found := (&countedValues{values: map[string][]int64{"s": values}}).check()
		if said := strings.Join(found, "\n"); !strings.Contains(said, want) || (want == "") != (said == "") {
			t.Errorf("%v: %q, want %q", values, said, want)
		}
	}
}
