package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/wire"
)

// dialAs connects as a user that the process is not.
func (r *rig) dialAs(uid uint32) *peer {
	r.t.Helper()
	near, far := socketpair(r.t, syscall.SOCK_STREAM)
	a := r.server.budget.openFor(uid)
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
		until(t, "they wait", func() bool { return r.server.inFlight[forLock].Load() == n })
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
	r, memory := withLocks(t, func(s *setup) { s.MaxInFlight, s.UserInFlight = 2, 1 })
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
	for i, p := range peers {
		for k := range each {
			p.ask("Lock.Renew", fmt.Sprint(i, "/", k))
		}
	}
	// Of each user's requests, one has a goroutine of its own, and the connection waits
	// with the next.
	until(t, "all that may have begun", func() bool { return store.calls.Load() == 2*int64(len(peers)) })
	if n := r.server.inFlight[forUpkeep].Load(); n != 2*int64(len(peers)) {
		t.Errorf("%d are under way", n)
	}
	close(store.halt)
	for _, p := range peers {
		for range each {
			if got := p.receive(); got.err != nil {
				t.Error(got.err)
			}
		}
	}
	until(t, "none is under way", func() bool { return r.server.inFlight.Load() == 0 })
}

// A peer that hangs up ends the upkeep that its connection waits with.
func TestUpkeepEndsWithItsConnection(t *testing.T) {
	r := newRig(t, func(s *setup) { s.UserInFlight = 1 })
	ended := make(chan error, 10)
	r.with("Keep", func(_ *Server, _ context.Context, d *desk) error {
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
	until(t, "its holds are given back", func() bool { return holds() == 3 })
	heir := r.dialAs(1000)
	if again := heir.table("Lock.Acquire", "f", options{"hold": "connection", "request_id": "r"})["lease_id"]; again != lease {
		t.Errorf("lease %v, then %v", lease, again)
	}
	_, _ = another.Close(), heir.Close()
	_ = innocent.Close()
	until(t, "all is given back", func() bool { return holds() == 0 })
}
