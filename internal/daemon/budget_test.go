package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// ledger is a budget without a server.
type ledger struct {
	*budget
	limits  Limits
	evicted map[*account]int
	stuck   bool // connections that have to end do not
}

func newLedger(l Limits) *ledger {
	b := &ledger{limits: l, evicted: map[*account]int{}}
	var limits atomic.Pointer[Limits]
	limits.Store(&b.limits)
	b.budget = newBudget(&limits)
	return b
}

// account is that of a new connection of the user.
func (b *ledger) account(uid uint32) *account {
	a := b.openFor(owner{uid: uid})
	a.moved(func() {
		b.evicted[a]++
		if !b.stuck {
			a.drop()
		}
	})
	return a
}

// A connection is chosen to give way while one goroutine hands it to another: it ends all
// the same.
func TestEvictionFollowsTheConnection(t *testing.T) {
	b := newLedger(Limits{MemoryLimit: 2 * wire.MaxMessage * bytesShare})
	idle, greedy := b.account(1), b.account(1)
	for _, a := range []*account{idle, greedy} {
		for range 2 {
			_ = a.Reserve(wire.MaxMessage / 2)
		}
	}
	if idle.over.Load() == nil || greedy.over.Load() != nil {
		t.Fatal("the older half message did not give way")
	}
	ended := 0
	idle.moved(func() { ended++ })
	greedy.moved(func() { t.Error("the other connection ended") })
	if ended != 1 {
		t.Errorf("the connection ended %d times in its new place", ended)
	}
}

// Memory that cannot be taken away makes its user no victim: another user's half messages
// give way to one who holds less.
func TestAnotherUserGivesWayWhereTheGreediestCannot(t *testing.T) {
	const all = 4 * wire.MaxMessage
	b := newLedger(Limits{MemoryLimit: all * bytesShare, UserMemory: all})
	must.Succeed(t, b.reserve(b.account(1).user, nil, 2*wire.MaxMessage, "", ""))
	half := b.account(2)
	for range 2 {
		must.Succeed(t, half.Reserve(wire.MaxMessage))
	}
	if err := b.account(3).Reserve(1024); err != nil || b.evicted[half] != 1 {
		t.Errorf("%v, and the half messages have given way %d times", err, b.evicted[half])
	}
}

// A connection that is chosen to give way while its patience ends is lost once.
func TestAConnectionIsLostOnce(t *testing.T) {
	for range 50 { // the end of the patience and the eviction come in any order
		synctest.Test(t, func(t *testing.T) {
			b := newLedger(Limits{MemoryLimit: 4 * wire.MaxMessage * bytesShare, UserMemory: 4 * wire.MaxMessage})
			b.stuck = true
			accounts := make([]*account, 4)
			for i := range accounts {
				accounts[i] = b.account(1)
				must.Succeed(t, accounts[i].Reserve(wire.MaxMessage))
			}
			asks := accounts[3]
			var wg sync.WaitGroup
			wg.Go(func() { _ = asks.Reserve(1) })
			wg.Go(func() {
				time.Sleep(roomPatience)
				b.mu.Lock()
				defer b.mu.Unlock()
				if asks.over.Load() == nil {
					asks.lose(b.exceeded(keyMemory, asks.user))
				}
			})
			wg.Wait()
			for _, a := range accounts {
				a.close()
			}
			if b.used != 0 || b.leaving != 0 {
				t.Fatalf("all have gone, and %d bytes are used, %d of them leave", b.used, b.leaving)
			}
		})
	}
}

// What is held is the sum of what the connections hold, and within the quotas. A
// connection loses its memory only to a user that holds no more than its own.
func TestBudgetKeepsTheQuotas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const all = 2 * wire.MaxMessage
		b := newLedger(Limits{MemoryLimit: all * bytesShare, UserMemory: rapid.SampledFrom([]int64{all / 2, 3 * all / 4, all}).Draw(t, "of a user")})
		accounts := make([]*account, 12)
		for i := range accounts {
			accounts[i] = b.account(uint32(i % 4))
		}
		held := map[*account][2]int64{}
		ofUser := func(u *user) (n int64) {
			for a, h := range held {
				if a.user == u && a.over.Load() == nil {
					n += h[0] + h[1]
				}
			}
			return n
		}
		pick := func(t *rapid.T) *account { return rapid.SampledFrom(accounts).Draw(t, "account") }
		grow := func(t *rapid.T, kind int, take func(*account, int) error) {
			a, n := pick(t), rapid.IntRange(all/20, all/5).Draw(t, "bytes")
			before := map[*user]int64{a.user: ofUser(a.user)}
			live := map[*account]bool{}
			for _, other := range accounts {
				before[other.user] = ofUser(other.user)
				live[other] = other.over.Load() == nil
			}
			err := take(a, n)
			if lost := a.over.Load(); (err != nil || kind == 1) && live[a] && lost != nil && !strings.Contains(lost.Error(), "memory_limit") && !strings.Contains(lost.Error(), keyUserMemory) {
				t.Fatalf("%v does not say what to change", lost)
			}
			if live[a] && a.over.Load() == nil {
				h := held[a]
				h[kind] += int64(n)
				held[a] = h
			}
			for _, other := range accounts {
				if other != a && live[other] && other.over.Load() != nil && other.user != a.user && before[other.user] <= ofUser(a.user) {
					t.Fatalf("user %d, with %d bytes, loses to user %d with %d", other.user.uid, before[other.user], a.user.uid, ofUser(a.user))
				}
			}
		}
		give := func(t *rapid.T, kind int, release func(*account, int)) {
			a := pick(t)
			release(a, int(held[a][kind]))
			h := held[a]
			h[kind] = 0
			held[a] = h
		}
		t.Repeat(map[string]func(*rapid.T){
			"reserve ": func(t *rapid.T) { grow(t, 0, (*account).Reserve) }, // more often than the rest
			"reserve":  func(t *rapid.T) { grow(t, 0, (*account).Reserve) },
			"take": func(t *rapid.T) {
				grow(t, 1, func(a *account, n int) error {
					if a.Take(n); a.over.Load() != nil {
						a.Give(n)
					}
					return nil
				})
			},
			"release": func(t *rapid.T) { give(t, 0, (*account).Release) },
			"give":    func(t *rapid.T) { give(t, 1, (*account).Give) },
			"close": func(t *rapid.T) {
				i := rapid.IntRange(0, len(accounts)-1).Draw(t, "closed")
				if accounts[i].over.Load() == nil {
					return
				}
				delete(held, accounts[i])
				accounts[i].close()
				accounts[i] = b.account(uint32(i % 4))
			},
			"": func(t *rapid.T) {
				sum := int64(0)
				for _, u := range b.users {
					if n := ofUser(u); n != u.bytes || n > b.limits.UserMemory {
						t.Fatalf("user %d holds %d bytes, counted are %d, allowed %d", u.uid, n, u.bytes, b.limits.UserMemory)
					}
					sum += u.bytes
				}
				if sum != b.used || sum > all {
					t.Fatalf("%d bytes are held, counted %d, allowed %d", sum, b.used, all)
				}
			},
		})
	})
}

// The half message that has not grown for the longest time goes first, and unread
// answers after all half messages.
func TestBudgetTakesFromThoseThatStandStill(t *testing.T) {
	b := newLedger(Limits{MemoryLimit: 2 * wire.MaxMessage * bytesShare, UserMemory: 1000})
	unread, busy, still, moves := b.account(1), b.account(1), b.account(1), b.account(1)
	unread.Take(100)
	if !busy.TryReserve(300) || still.Reserve(300) != nil || moves.Reserve(300) != nil || busy.TryReserve(1) {
		t.Fatal("within the quota")
	}
	busy.Progress()
	for i, want := range []*account{still, moves, busy, unread} {
		if err := b.account(1).Reserve(300); err != nil && want != unread {
			t.Fatal(err)
		}
		if i < 3 && (want.over.Load() == nil || b.evicted[want] != 1 || len(b.evicted) != i+1) {
			t.Fatalf("the connection %d in the order is not the one that goes: %v", i, b.evicted)
		}
	}
	// A message that does not fit by itself ends its own connection.
	alone := b.account(2)
	var over *wire.Error
	if err := alone.Reserve(1001); !errors.As(err, &over) || over.Code != wire.CodeOverloaded || b.evicted[alone] != 1 {
		t.Errorf("%v", err)
	}
}

// What a connection holds that gives way is free when it is gone, and not before. One that
// does not go is waited for, and not for ever.
func TestRoomIsWaitedFor(t *testing.T) {
	for _, goes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newLedger(Limits{MemoryLimit: 2 * wire.MaxMessage * bytesShare, UserMemory: 1000})
			b.stuck = true
			first, second := b.account(1), b.account(1)
			var err error
			done := false
			_ = first.Reserve(600)
			go func() {
				err = second.Reserve(600)
				done = true
			}()
			synctest.Wait()
			b.mu.Lock()
			if done || b.evicted[first] != 1 || b.used != 600 {
				t.Errorf("done %v with %d bytes held", done, b.used)
			}
			b.mu.Unlock()
			if goes {
				first.Release(600)
			} else {
				time.Sleep(roomPatience)
			}
			synctest.Wait()
			if !done || (err == nil) != goes || b.used != 600 {
				t.Errorf("%v: done %v, %v, %d bytes held", goes, done, err, b.used)
			}
		})
	}
}

// halfMessage is the beginning of a message that is not going to end.
func halfMessage() []byte {
	return request(1, strings.Repeat("x", wire.MaxMessage-100), []any{})[:1_000_000]
}

// hoard opens connections that each send half a message, and reads what becomes of them.
func (r *rig) hoard(connections int) (peers []*peer, answers chan reply) {
	r.t.Helper()
	answers = make(chan reply, connections)
	half := halfMessage()
	for range connections {
		p := r.dial()
		peers = append(peers, p)
		go func() {
			_, _ = p.Write(half) // the daemon may close before the end
			if got, err := p.read(); err == nil {
				answers <- got
			}
		}()
	}
	return peers, answers
}

// held is what the peers hold of the budget.
func (r *rig) held() int64 {
	r.server.budget.mu.Lock()
	defer r.server.budget.mu.Unlock()
	return r.server.budget.used
}

// served is how many connections have not ended.
func (r *rig) served() int {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	return r.server.open() - len(r.server.remnants)
}

// Half messages take no more than the budget: those that stand still lose theirs, and
// hear why. A whole message always has room, however large, and all is given back.
func TestHalfMessagesAreWithinTheBudget(t *testing.T) {
	const limit, connections = 64 << 20, 40
	for _, engine := range engines {
		r := newRig(t, func(s *setup) { s.EventLoop, s.MemoryLimit, s.patience.message = engine.loop, limit, time.Hour }).start()
		_, most := r.server.limits.Load().bytes()
		var highest, stayed atomic.Int64
		watched, watching := make(chan struct{}), sync.WaitGroup{}
		watching.Go(func() {
			for {
				select {
				case <-watched:
					return
				default:
					r.server.budget.mu.Lock()
					used, leaving := r.server.budget.used, r.server.budget.leaving
					r.server.budget.mu.Unlock()
					highest.Store(max(highest.Load(), used))
					stayed.Store(max(stayed.Load(), used-leaving))
					time.Sleep(100 * time.Microsecond)
				}
			}
		})
		peers, answers := r.hoard(connections)
		room := int(most / wire.MaxMessage)
		for range connections - room {
			var got reply
			select {
			case got = <-answers:
			case <-time.After(hang):
				t.Fatalf("%s: connections do not lose their half messages", engine.name)
			}
			if got.id != 0 || got.err == nil || got.err.Code != wire.CodeOverloaded || !strings.Contains(got.err.Message, "quota_bytes") {
				t.Fatalf("%s: a connection that loses its message hears %+v", engine.name, got)
			}
		}
		other := r.dial()
		other.send(request(7, strings.Repeat("y", wire.MaxMessage-100), []any{}))
		other.wantError(other.receive(), wire.CodeUnknownMethod)
		other.id()
		close(watched)
		watching.Wait()
		// The event loop does not wait until the victims of what it has read are gone.
		const read = connections * (64 << 10)
		if n := highest.Load(); n > most+read || n < most/2 || stayed.Load() > most {
			t.Errorf("%s: %d bytes were held, %d of them by those who stay, and %d are allowed", engine.name, n, stayed.Load(), most)
		}
		for _, p := range peers {
			_ = p.Close()
		}
		await.Eventually(t, "all is given back", func() bool { return r.held() == 0 })
	}
}

// So do answers that nobody reads.
func TestUnreadAnswersAreWithinTheBudget(t *testing.T) {
	const connections = 200
	const fit = 4 * wire.HighWater / wire.FreeBuffer // what is left of a burst of answers is larger
	for _, engine := range engines {
		r := newRig(t, wide, func(s *setup) {
			s.EventLoop, s.MemoryLimit, s.UserMemory, s.source = engine.loop, 64<<20, 4*wire.HighWater, clock.System{}
			s.patience.write, s.patience.refuse = time.Hour, time.Millisecond
		}).start()
		for range connections {
			p := r.dial()
			go func() { _, _ = p.Write(bytes.Repeat(request(1, "NextIDs", []any{smallBatch}), 10_000)) }()
		}
		await.Eventually(t, "most have lost their connections", func() bool { return r.served() <= fit && r.held() <= 4*wire.HighWater })
		r.dial().id()
	}
}

// The connections and the waiting requests of one user have quotas of their own.
func TestQuotasOfAUser(t *testing.T) {
	r := newRig(t, func(s *setup) {
		s.MaxConnections, s.UserConnections, s.MaxInFlight, s.UserInFlight = 10, 3, 10, 1
	}).start()
	a, b := r.dial(), r.dial()
	a.ids(256)
	b.alive()
	r.dial().alive()
	turned := r.dial()
	if got := turned.fails(wire.CodeOverloaded, "Ping"); !strings.Contains(got.Message, "quota_connections") {
		t.Errorf("%v does not say what to change", got)
	}
	a.ask("NextID", patient())
	r.waiters(1)
	if got := b.fails(wire.CodeOverloaded, "NextID"); !strings.Contains(got.Message, "quota_waiting") {
		t.Errorf("%v does not say what to change", got)
	}
	_ = a.Close()
	r.open(2)
	r.dial().alive()
	r.clock.Advance(time.Millisecond)
	b.id()
}

// open waits until no request waits and exactly so many connections are open.
func (r *rig) open(connections int) {
	r.t.Helper()
	await.Eventually(r.t, fmt.Sprintf("%d connections are open, and none waits", connections), func() bool {
		return r.server.connections() == connections && r.awaiting() == 0
	})
}

// A connection that loses its memory while it begins to read or to write ends too: the
// deadlines that it sets for itself do not outlast the loss.
func TestEvictionWinsOverDeadlines(t *testing.T) {
	r := newRig(t, func(s *setup) {
		s.patience.message, s.patience.write, s.patience.refuse = time.Hour, time.Hour, time.Millisecond
	})
	_, server := socketpair(t, syscall.SOCK_STREAM)
	c := r.conn(server)
	c.wire.Preload(request(1, "Ping", []any{})[:3])
	c.account.over.Store(wire.Errorf(wire.CodeOverloaded, "no"))
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := (*patientReader)(c).Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	if _, err := (*patientWriter)(c).Write(make([]byte, 16<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write: %v", err)
	}
}

// The limits of all follow from memory_limit where the configured ones are higher.
func TestLimitsFollowFromMemory(t *testing.T) {
	for _, test := range []struct {
		limits                              Limits
		connections, inFlight, ofOne, holds int
		key                                 string
		bytes, bytesOfOne                   int64
	}{
		{Limits{MaxConnections: 16384, MaxInFlight: 8192, MemoryLimit: 256 << 20}, 4096, 2048, 3072, 8192, keyMemory, 32 << 20, 24 << 20},
		{Limits{MaxConnections: 16384, MaxInFlight: 8192, MemoryLimit: 64 << 20}, 1024, 512, 768, 2048, keyMemory, 8 << 20, 6 << 20},
		{Limits{MaxConnections: 1, MaxInFlight: 1, MemoryLimit: 1}, 1, 1, 1, 1, "max_connections", 2 << 20, 3 << 19},
		{Limits{MaxConnections: 5, MaxInFlight: 5, UserConnections: 2, UserInFlight: 9, MemoryLimit: 1 << 30, UserMemory: 5}, 5, 5, 2, 10_000, "max_connections", 128 << 20, 5},
	} {
		l := test.limits
		connections, key := l.connections()
		inFlight, _ := l.inFlight()
		ofOne, _ := l.userConnections()
		waiters, _ := l.lockWaiters()
		holds, _ := l.holds()
		all, one := l.bytes()
		if connections != test.connections || key != test.key || inFlight != test.inFlight || ofOne != test.ofOne ||
			waiters != test.inFlight || holds != test.holds || all != test.bytes || one != test.bytesOfOne {
			t.Errorf("%+v: %d connections by %s, %d wait, %d for locks, %d of one, %d holds; %d bytes, %d of one",
				l, connections, key, inFlight, waiters, ofOne, holds, all, one)
		}
	}
}
