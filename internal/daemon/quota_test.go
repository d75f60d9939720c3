package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/quota"
	"github.com/kazahana/kazahana/internal/placement/driver"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
	"github.com/kazahana/kazahana/internal/wire"
)

// dialAs connects as a user that the process is not.
func (r *rig) dialAs(uid uint32) *peer {
	r.t.Helper()
	near, far := socketpair(r.t, syscall.SOCK_STREAM)
	a := r.server.budget.openFor(owner{uid: uid})
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	r.server.begin(context.Background(), newConn(r.server, far, a))
	return newPeer(r.t, near)
}

// refused fails unless the answer is a refusal with these words.
func (p *peer) refused(words string, method string, params ...any) {
	p.t.Helper()
	if got := p.fails(wire.CodeOverloaded, method, params...); !strings.Contains(got.Message, words) {
		p.t.Errorf("%s: %v, without %q", method, got, words)
	}
}

// Requests that wait for locks have a budget of their own: however many there are, the
// same user and others get answers, IDs and values, and those who hold a lock keep it.
func TestLockWaitersHaveABudgetOfTheirOwn(t *testing.T) {
	r, _ := withLocks(t, func(s *setup) { s.MaxInFlight, s.UserInFlight = 4, 3 })
	greedy, innocent := r.dialAs(1000), r.dialAs(1001)
	greedy.table("Lock.Acquire", "taken")
	innocent.table("Lock.Acquire", "mine", options{"hold": "connection"})
	innocent.ids(256)
	waits := options{"wait_ms": maxLockWait.Milliseconds()}
	waiting := func(n int64) {
		await.Eventually(t, "they wait", func() bool { return r.server.inFlight[forLock].Load() == n })
	}
	for i := range 3 {
		greedy.ask("Lock.Acquire", "taken", waits)
		waiting(int64(i + 1))
	}
	another := r.dialAs(1000)
	another.refused("quota_waiting: UID 1000 has 3 requests waiting for locks, as many as one UID may have: wait for answers, or raise the quota",
		"Lock.Acquire", "taken", waits)
	another.fails(wire.CodeLockHeld, "Lock.Acquire", "taken") // which does not wait
	innocent.ask("Lock.Acquire", "taken", waits)
	waiting(4)
	r.dialAs(1002).refused("4 requests are waiting for locks already, and more may not: see max_in_flight", "Lock.Acquire", "taken", waits)
	for key, p := range map[string]*peer{"taken": another, "mine": r.dialAs(1001)} {
		p.table("Lock.Renew", key, options{"ttl_ms": 60_000})
		p.table("Lock.Get", key)
		p.table("Lock.List")
		p.result("Sequence.Next", "orders")
		p.table("Lock.Release", key)
	}
}

// Each user who lets as many requests wait as it can leaves half of what there was beyond three
// quarters of all places. A user who may have all places gets them.
func TestGreedyUsersLeavePlaces(t *testing.T) {
	for _, test := range []struct {
		ofUser int
		want   []int
	}{
		{48, []int{48, 8, 4, 2, 1, 1, 0}},
		{8, []int{8, 8, 8, 8, 8, 8, 8, 4, 2, 1}},
		{62, []int{62, 1, 1, 0}},
		{64, []int{64, 0}},
	} {
		r := newRig(t, func(s *setup) { s.MaxInFlight, s.UserInFlight = 64, test.ofUser })
		for i, want := range test.want {
			u, n := r.server.budget.openFor(owner{uid: 1000 + uint32(i)}).user, 0
			for ; n <= 64; n++ {
				if _, err := r.server.countWaiting(u, forAnswer); err != nil {
					break
				}
			}
			if n != want {
				t.Errorf("of 64 places, %d for a user: user %d has %d, want %d", test.ofUser, i, n, want)
			}
		}
		whose := map[string]bool{}
		for _, hit := range r.server.Status().Overload {
			whose[hit.Quota+" "+hit.Whose] = true
		}
		delete(whose, "quota_waiting UID 1000") // which it had before the others came
		if test.ofUser == 48 && (len(whose) != 1 || !whose["max_in_flight UID 1000"]) {
			t.Errorf("UID 1000 has most places, and the refusals are by %v", whose)
		}
	}
}

// So it is with connections. A user with few gets more.
func TestGreedyUsersLeaveConnections(t *testing.T) {
	b, open := newLedger(Limits{MaxConnections: 64}), 0
	b.quotas = quota.New(zap.NewNop(), func(string) {})
	for _, step := range []struct {
		uid        uint32
		asks, want int
	}{{7, 6, 6}, {1, 64, 42}, {7, 64, 5}, {2, 64, 5}, {3, 64, 3}, {4, 64, 1}, {5, 64, 1}, {6, 64, 1}} {
		n := 0
		for ; n < step.asks && b.account(step.uid).admit(open) == nil; n++ {
			open++
		}
		if n != step.want {
			t.Errorf("user %d gets %d of 64 connections, want %d", step.uid, n, step.want)
		}
	}
	if hits := b.quotas.Recent(); len(hits) != 1 || hits[0].Whose != "UID 1" {
		t.Errorf("UID 1 has most connections, and the refusals are %v", hits)
	}
}

// Batches that wait, which nobody can take away, fill a part of the memory only, however many users
// have them. A message finds room in the rest.
func TestGreedyUsersLeaveMemory(t *testing.T) {
	const all = 16 * wire.MaxMessage
	b := newLedger(Limits{MemoryLimit: all * bytesShare})
	for i, want := range []int{9, 1, 1, 1, 0} {
		a, n := b.account(1000+uint32(i)), 0
		for ; n < 16 && b.reserve(a.user, a, wire.MaxMessage, "batches", "ask for fewer") == nil; n++ {
		}
		if n != want {
			t.Errorf("user %d has %d MiB that cannot be taken away, want %d", i, n, want)
		}
	}
	if err := b.account(2000).Reserve(4 * wire.MaxMessage); err != nil {
		t.Error(err)
	}
	for i, n := range []int64{9, 1, 1, 1} {
		b.release(b.users[owner{uid: 1000 + uint32(i)}], n*wire.MaxMessage)
	}
	if last := b.account(1000).user; b.kept != 0 || last.kept != 0 {
		t.Errorf("%d bytes are kept, %d of them by a user", b.kept, last.kept)
	}
}

// halting is a lock store whose upkeep waits while it halts.
type halting struct {
	lock.Store
	halt  chan struct{} // closed when it goes on
	calls atomic.Int64
}

func (s *halting) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if r.Op == lock.Renew {
		s.calls.Add(1)
		<-s.halt
	}
	return s.Store.Do(ctx, r)
}

// Requests for the upkeep of locks are never refused. Where too many are under way, a
// connection is read no further until its latest was answered.
func TestUpkeepIsNeverRefused(t *testing.T) {
	r, memory := withLocks(t)
	store := &halting{Store: memory, halt: make(chan struct{})}
	locks := *r.server.cfg.Locks
	locks.Store, locks.Host = store, lock.NewHost(store, clock.NewBelieved(clock.System{}, clock.Config{}), hang)
	t.Cleanup(func() { _ = locks.Host.Close(context.Background()) })
	r.server.cfg.Locks = &locks
	var peers []*peer
	const each = 20
	for i := range uint32(3) {
		p := r.dialAs(1000 + i)
		for k := range each {
			p.table("Lock.Acquire", fmt.Sprint(i, "/", k))
		}
		peers = append(peers, p)
	}
	few := *r.server.limits.Load()
	few.MaxInFlight, few.UserInFlight = 2, 1
	r.server.limits.Store(&few)
	for i, p := range peers {
		for k := range each {
			p.ask("Lock.Renew", fmt.Sprint(i, "/", k))
		}
	}
	// Of each user's requests, one has a goroutine of its own, and the connection waits
	// with the next.
	await.Eventually(t, "all that may have begun", func() bool { return store.calls.Load() == 2*int64(len(peers)) })
	if n := r.server.inFlight[forUpkeep].Load(); n != 2*int64(len(peers)) {
		t.Errorf("%d are under way", n)
	}
	close(store.halt)
	for _, p := range peers {
		for range each {
			p.succeeds()
		}
	}
	await.Eventually(t, "none is under way", func() bool { return r.server.inFlight.Load() == 0 })
}

// A peer that hangs up ends the upkeep that its connection waits with.
func TestUpkeepEndsWithItsConnection(t *testing.T) {
	r := newRig(t, func(s *setup) { s.UserInFlight = 1 })
	ended := make(chan error, 10)
	r.with("Keep", func(_ *Server, _ context.Context, d *responder) error {
		return d.asideFor(forUpkeep, func(ctx context.Context) (any, error) {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return nil, ctx.Err()
		})
	})
	p := r.start().dial()
	p.ask("Keep")
	p.ask("Keep")
	r.waiters(2)
	_ = p.Close()
	for range 2 {
		if err := <-ended; !errors.Is(err, errHungUp) {
			t.Error(err)
		}
	}
}

// Locks that connections hold and watches have one quota for each user.
func TestQuotaOfHolds(t *testing.T) {
	r, _ := withLocks(t, func(s *setup) { s.UserHolds = 3 })
	greedy, innocent := r.dialAs(1000), r.dialAs(1001)
	held := options{"hold": "connection"}
	var lease any
	for _, key := range []string{"a", "b"} {
		lease = greedy.table("Lock.Acquire", key, held)["lease_id"]
	}
	greedy.table("Lock.Watch", "b")
	greedy.table("Lock.Watch", "b") // is the same one
	another := r.dialAs(1000)
	const words = "quota_holds: UID 1000 has 3 locks held by connections, and watches, as many as one UID may have: release some, or raise the quota"
	another.refused(words, "Lock.Acquire", "c", held)
	another.refused(words, "Lock.Watch", "b", options{"lease_id": lease})
	another.table("Lock.Acquire", "c") // which no connection holds
	innocent.table("Lock.Acquire", "d", held)
	greedy.fails(wire.CodeLockHeld, "Lock.Acquire", "d") // a hold that was not granted is none
	innocent.fails(wire.CodeLockHeld, "Lock.Acquire", "a", held)
	holds := func() int {
		r.server.budget.mu.Lock()
		defer r.server.budget.mu.Unlock()
		return r.server.budget.holds
	}
	if n := holds(); n != 4 {
		t.Errorf("%d are counted", n)
	}
	greedy.table("Lock.Release", "b") // with its watch
	another.table("Lock.Acquire", "e", held)
	lease = another.table("Lock.Acquire", "f", options{"hold": "connection", "request_id": "r"})["lease_id"]
	another.refused(words, "Lock.Acquire", "g", held)
	_ = greedy.Close()
	await.Eventually(t, "its holds are given back", func() bool { return holds() == 3 })
	heir := r.dialAs(1000)
	if again := heir.table("Lock.Acquire", "f", options{"hold": "connection", "request_id": "r"})["lease_id"]; again != lease {
		t.Errorf("lease %v, then %v", lease, again)
	}
	_, _ = another.Close(), heir.Close()
	_ = innocent.Close()
	await.Eventually(t, "all is given back", func() bool { return holds() == 0 })
}

// One user's requests wait for hundreds of locks that are held, for a day, as many as it
// may have. On real stores, another user's locks are renewed, taken and given back
// meanwhile, and each of its requests is answered.
func TestLockWaitersDoNotKeepOthersFromRenewing(t *testing.T) {
	for name, open := range map[string]func(testing.TB) string{
		"sqlite": func(t testing.TB) string { return "sqlite:" + filepath.Join(t.TempDir(), "store.db") },
		"redis":  func(t testing.TB) string { return "redis+unix:" + redistest.New(t).Sock },
	} {
		t.Run(name, func(t *testing.T) {
			r := onStore(t, open(t), 400)
			greedy, waiters, innocent := r.dialAs(1000), r.dialAs(1000), r.dialAs(1001)
			const quota = 300
			for i := range quota {
				greedy.table("Lock.Acquire", fmt.Sprint("taken/", i), options{"ttl_ms": time.Hour.Milliseconds()})
			}
			lease := innocent.table("Lock.Acquire", "mine", options{"hold": "connection", "ttl_ms": 60_000})["lease_id"]
			innocent.table("Lock.Watch", "mine")
			for i := range 2 * quota {
				waiters.ask("Lock.Acquire", fmt.Sprint("taken/", i%quota), options{"wait_ms": maxLockWait.Milliseconds()})
			}
			for range quota {
				waiters.wantError(waiters.receive(), wire.CodeOverloaded)
			}
			for i := range 50 {
				innocent.table("Lock.Renew", "mine", options{"ttl_ms": 60_000, "lease_id": lease})
				innocent.table("Lock.Get", "mine")
				innocent.table("Lock.Acquire", "another")
				innocent.table("Lock.Release", "another")
				innocent.result("Sequence.Next", "orders", options{"request_id": fmt.Sprint(i)})
			}
			if n := r.server.inFlight[forLock].Load(); n != quota {
				t.Errorf("%d wait for locks", n)
			}
			_ = waiters.Close()
			await.Eventually(t, "they wait no longer", func() bool { return r.server.inFlight.Load() == 0 })
			innocent.table("Lock.Release", "mine", options{"lease_id": lease})
		})
	}
}

// onStore is a daemon whose locks and sequences are in a real store.
func onStore(t *testing.T, url string, inFlight int) *rig {
	t.Helper()
	store, err := backend.OpenStore(url, backend.StoreOptions{})
	must.Succeed(t, err)
	must.Succeed(t, store.Init(t.Context()))
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return newRig(t, func(s *setup) {
		s.MaxInFlight, s.UserInFlight = inFlight, 3*inFlight/4
		s.keep(t, store.Locks, store.Sequences)
	}).start()
}

// Streams of events are few for all users together. One user has three quarters of them.
func TestQuotaOfEventStreams(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	var first *peer
	for i := range driver.MaxSubscribers * 3 / 4 {
		p := r.dialAs(1000)
		if p.table("Placement.Watch"); i == 0 {
			first = p
		}
	}
	again := r.dialAs(1000)
	again.refused("fixed_placement_watches: UID 1000 has 96 watches of events, as many as one UID may have: share one", "Placement.Watch")
	r.dialAs(1001).table("Placement.Watch")
	_ = first.Close()
	await.Eventually(t, "its place is free", func() bool { return again.call("Placement.Watch").err == nil })
}
