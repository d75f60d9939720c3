package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/refusals"
	"github.com/kazahana/kazahana/internal/placement/driver"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// dialAs connects as a user that the process is not.
func (r *rig) dialAs(uid uint32) *peer {
	r.t.Helper()
	near, far := socketpair(r.t, syscall.SOCK_STREAM)
	a := r.server.bounds.openFor(owner{uid: uid}, 0)
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

// Users have as many connections as they may, processes half of all, and all together no more than
// there are. A place is free when its connection is closed.
func TestConnectionsAreBounded(t *testing.T) {
	b := newLedger()
	b.limits.Store(&Limits{MaxConnections: 64})
	var open []*account
	opens := func(uid uint32, pid, want int, refusal string) {
		t.Helper()
		for n := 0; ; n++ {
			a := b.openFor(owner{uid: uid}, pid)
			why := a.admit()
			if why == nil {
				open = append(open, a)
				continue
			}
			if a.close(); n != want || !strings.Contains(why.Message, refusal) {
				t.Errorf("UID %d has %d more with the PID %d, want %d: %v", uid, n, pid, want, why)
			}
			return
		}
	}
	opens(1, 7, 32, "process 7 of UID 1 has 32 connections, half of all that may be: share one: see max_connections")
	opens(1, 8, 16, "UID 1 has 48 connections, as many as one may have: share one: see max_connections_per_user")
	opens(1, 0, 0, keyConnectionsPerUser)
	opens(2, 0, 16, "all 64 connections are in use: share one: see max_connections")
	opens(3, 9, 0, keyConnections)
	for _, a := range open {
		a.close()
	}
	if b.connections != 0 || len(b.shares) > 0 {
		t.Errorf("%d connections of %d users and processes are left", b.connections, len(b.shares))
	}
	opens(4, 0, 48, keyConnectionsPerUser) // the PID is not visible: only the user counts
	b.limits.Store(&Limits{MaxConnections: 64, MaxConnectionsPerUser: 50})
	opens(4, 0, 2, keyConnectionsPerUser)
	b.limits.Store(&Limits{MaxConnections: 64, MaxConnectionsPerUser: 100, Files: 60})
	opens(4, 0, 10, refusals.OpenFiles)
}

// So it is with requests that wait: each connection, each process and all have as many as they may,
// and batches what their IDs take. Who is refused has nothing counted.
func TestWaitingRequestsAreBounded(t *testing.T) {
	b := newLedger()
	limits := &Limits{MaxConnections: 64, MaxInFlight: 32, MaxWaiting: 5, MemoryLimit: 4 * room}
	b.limits.Store(limits)
	var ends []func()
	waits := func(a *account, ids int64, want int, refusal string) {
		t.Helper()
		for n := 0; ; n++ {
			bytes, why := a.waits(ids)
			if why == nil {
				ends = append(ends, func() { a.doneWaiting(bytes) })
				continue
			}
			if n != want || !strings.Contains(why.Message, refusal) {
				t.Errorf("%d more wait, want %d: %v", n, want, why)
			}
			return
		}
	}
	end := func() {
		t.Helper()
		for _, done := range ends {
			done()
		}
		if ends = nil; b.inFlight() != 0 || b.waitingBytes.taken.Load() != 0 {
			t.Errorf("%d wait, with %d bytes", b.inFlight(), b.waitingBytes.taken.Load())
		}
	}
	of := func(uid uint32, pid int) *account { return b.openFor(owner{uid: uid}, pid) }
	first := of(1, 7)
	waits(first, 1, 5, " wait, as many as may: wait for answers: see max_waiting")
	waits(of(1, 7), 1, 3, "8 requests of process 7 of UID 1 wait, a quarter of all that may: wait for answers: see max_in_flight")
	waits(of(1, 7), 1, 0, keyInFlight)
	for pid := 8; pid < 11; pid++ {
		waits(of(1, pid), 1, 5, keyWaiting)
		waits(of(1, pid), 1, 3, keyInFlight)
	}
	waits(of(2, 0), 1, 0, "32 requests wait, and no more may: see max_in_flight")
	end()
	waits(of(2, 0), 1, 5, keyWaiting)
	waits(of(2, 0), 1, 3, "UID 2 wait, a quarter") // processes without a visible PID are one
	end()
	const batch = 20_000
	waits(of(3, 1), batch, room/(batch*rangeSize+waitingSize), "ask for fewer IDs at a time: see memory_limit")
	end()
}

// Who is refused takes no room from others meanwhile, for example with a batch of more IDs than may wait.
func TestRefusedRequestsTakeNoRoom(t *testing.T) {
	const all = 100
	var room places
	stop := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if room.take(all+1, all) {
				t.Error("there is more room than there is")
				return
			}
		}
	})
	defer asking.Wait()
	defer close(stop)
	for range 1_000_000 {
		if !room.take(1, all) {
			t.Fatal("there is room, and it is not given")
		}
		room.give(1)
	}
}

// A process that asks for a lock again and again, on one connection or on sixteen, leaves places: others
// acquire, renew and release, and get IDs and values.
func TestRequestsForLocksLeavePlaces(t *testing.T) {
	for _, connections := range []int{1, 16} {
		t.Run(fmt.Sprint(connections), func(t *testing.T) {
			const inFlight, waiting, asks = 8192, 1024, 8192 // as by default
			r, _ := withLocks(t, func(s *setup) { s.MaxInFlight, s.MaxWaiting = inFlight/testShare, waiting })
			innocent := r.dialAs(1001)
			innocent.table("Lock.Acquire", "mine", options{"hold": "connection"})
			r.dialAs(1000).table("Lock.Acquire", "taken")
			waits := options{"wait_ms": maxLockWait.Milliseconds()}
			for range connections {
				p := r.dialAs(1000)
				go func() {
					for range asks / connections {
						if _, err := p.Write(request(1, "Lock.Acquire", []any{"taken", waits})); err != nil {
							return
						}
					}
				}()
				go func() {
					for {
						if _, err := p.read(); err != nil {
							return
						}
					}
				}()
			}
			want := min(waiting*connections, inFlight/waitingShare)
			r.waiters(want)
			for i := range 20 {
				innocent.table("Lock.Renew", "mine", options{"ttl_ms": 60_000})
				innocent.table("Lock.Get", "mine")
				innocent.table("Lock.Acquire", "other")
				innocent.table("Lock.Release", "other")
				innocent.table("Lock.List")
				innocent.result("Sequence.Next", "orders", options{"request_id": fmt.Sprint(i)})
				innocent.id()
			}
			r.waiters(want)
		})
	}
}

// halting is a lock store that lets upkeep wait while it halts.
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
	r, memory := withLocks(t, func(s *setup) { s.MaxInFlight = 1 })
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
	// Some have a goroutine of their own, and each connection waits with the next.
	await.Eventually(t, "all that may have begun", func() bool { return store.calls.Load() == testShare+int64(len(peers)) })
	if n := r.server.bounds.upkeep.taken.Load(); n != testShare {
		t.Errorf("%d are under way beside them", n)
	}
	close(store.halt)
	for _, p := range peers {
		for range each {
			p.succeeds()
		}
	}
	await.Eventually(t, "none is under way", func() bool { return r.server.bounds.inFlight() == 0 })
}

// A connection has upkeepOfConnection of them, beside the ones that it waits with.
func TestUpkeepOfAConnectionIsBounded(t *testing.T) {
	b := newLedger()
	b.limits.Store(&Limits{MaxInFlight: 10 * upkeepOfConnection})
	a := b.account(1)
	for range upkeepOfConnection {
		if !a.keepsUp() {
			t.Fatal("too few")
		}
	}
	if a.keepsUp() || !b.account(1).keepsUp() {
		t.Error("not the connection is bounded")
	}
	if a.doneKeepingUp(); !a.keepsUp() {
		t.Error("a place that is free is not taken")
	}
}

// A peer that hangs up ends the upkeep that its connection waits with.
func TestUpkeepEndsWithItsConnection(t *testing.T) {
	r := newRig(t, func(s *setup) { s.MaxInFlight = 1 })
	ended := make(chan error, 10)
	r.with("Keep", func(_ *Server, _ context.Context, d *responder) error {
		return d.asideUpkeep(func(ctx context.Context) (any, error) {
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

// Locks that a connection holds are bounded, and given back with their locks and with the
// connection.
func TestHoldsAreBounded(t *testing.T) {
	r, _ := withLocks(t)
	greedy, innocent := r.dialAs(1000), r.dialAs(1001)
	held := options{"hold": "connection"}
	greedy.table("Lock.Acquire", "a", held)
	var a *account
	r.server.eachConn(func(c *conn) {
		if c.account.user.uid == 1000 {
			a = c.account
		}
	})
	for range holdsOfConnection - 2 {
		must.Succeed(t, a.hold())
	}
	greedy.table("Lock.Acquire", "b", held)
	greedy.refused(" holds 1024 locks, as many as one may: release some", "Lock.Acquire", "c", held)
	greedy.table("Lock.Acquire", "c") // which no connection holds
	innocent.table("Lock.Acquire", "d", held)
	innocent.fails(wire.CodeLockHeld, "Lock.Acquire", "a", held) // a hold that was not granted is none
	greedy.table("Lock.Release", "b")
	if n := a.holds.taken.Load(); n != holdsOfConnection-1 {
		t.Errorf("%d are counted", n)
	}
	_ = greedy.Close()
	await.Eventually(t, "they are given back", func() bool { return a.holds.taken.Load() == holdsOfConnection-2 })
}

// Watches of events are few for all together.
func TestEventStreamsAreBounded(t *testing.T) {
	r := newSite(t).start("a:1").sees(1)
	var first *peer
	for i := range driver.MaxSubscribers {
		p := r.dial()
		if p.table("Placement.Watch"); i == 0 {
			first = p
		}
	}
	again := r.dial()
	again.fails(wire.CodeOverloaded, "Placement.Watch")
	_ = first.Close()
	await.Eventually(t, "its place is free", func() bool { return again.call("Placement.Watch").err == nil })
}
