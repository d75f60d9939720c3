package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
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

// ledger is bounds without a server.
type ledger struct {
	*bounds
	evicted map[*account]int
	stuck   bool // connections that have to end do not
}

// room is what a ledger has for half messages and unread answers.
const room = 2 * wire.MaxMessage

func newLedger() *ledger {
	var limits atomic.Pointer[Limits]
	limits.Store(&Limits{MemoryLimit: room * memoryShare})
	return &ledger{bounds: newBounds(&limits, nil), evicted: map[*account]int{}}
}

// account returns the account of a new connection of the user.
func (b *ledger) account(uid uint32) *account {
	a := b.openFor(owner{uid: uid}, 0)
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
	b := newLedger()
	idle, greedy := b.account(1), b.account(1)
	for _, a := range []*account{idle, greedy} {
		for range 2 {
			_ = a.Reserve(room / 3)
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

// The connection that has not moved for the longest time goes first, even if it holds little.
func TestConnectionsThatStandStillGiveWay(t *testing.T) {
	b := newLedger()
	const part = room / 4
	unread, busy, still, moves := b.account(1), b.account(2), b.account(1), b.account(3)
	unread.Take(part)
	if busy.Reserve(part) != nil || still.Reserve(part) != nil || moves.Reserve(part) != nil {
		t.Fatal("within the bound")
	}
	busy.Progress()
	for i, want := range []*account{unread, still, moves, busy} {
		if err := b.account(1).Reserve(part); err != nil {
			t.Fatal(err)
		}
		if want.over.Load() == nil || b.evicted[want] != 1 || len(b.evicted) != i+1 {
			t.Fatalf("the connection %d in the order is not the one that goes: %v", i, b.evicted)
		}
	}
	// A message that does not fit by itself ends its own connection.
	alone := b.account(2)
	var over *wire.Error
	if err := alone.Reserve(room + 1); !errors.As(err, &over) || over.Code != wire.CodeOverloaded || !strings.Contains(over.Message, keyMemory) || b.evicted[alone] != 1 {
		t.Errorf("%v", err)
	}
}

// What a connection holds that gives way is free when it is gone, and not before.
func TestRoomIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLedger()
		b.stuck = true
		first := b.account(1)
		must.Succeed(t, first.Reserve(room))
		done := 0
		for range 100 {
			go func() {
				if b.account(1).Reserve(room/100) == nil {
					b.mu.Lock()
					done++
					b.mu.Unlock()
				}
			}()
			synctest.Wait()
		}
		if done > 0 || b.evicted[first] != 1 || b.memory.held != room {
			t.Errorf("%d are done with %d bytes held", done, b.memory.held)
		}
		// An answer that is made already waits for nothing.
		made := b.account(2)
		made.takeMade(1000)
		made.Give(1000)
		first.Give(room / 2)
		synctest.Wait()
		if done != 50 {
			t.Errorf("%d have room in half of all", done)
		}
		first.Give(room / 2)
		synctest.Wait()
		if done != 100 || len(b.evicted) != 1 {
			t.Errorf("%d have room in all; %d connections gave way", done, len(b.evicted))
		}
	})
}

// All parts of a connection that wait for memory hear that the connection is made to end, and so
// do others that wait for its memory.
func TestAllWaitsOfAConnectionEndWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLedger()
		b.stuck = true
		half, a, other := b.account(1), b.account(1), b.account(1)
		must.Succeed(t, half.Reserve(room-1000))
		must.Succeed(t, a.Reserve(1000))
		ended := make(chan error, 3)
		for _, n := range []int{1000, 2000} {
			go func() { ended <- a.Reserve(n) }()
			synctest.Wait()
		}
		go func() { ended <- other.Reserve(1000) }()
		synctest.Wait()
		b.mu.Lock()
		a.lose(b.noRoom(room))
		b.mu.Unlock()
		synctest.Wait()
		if len(ended) != 2 || <-ended == nil || <-ended == nil {
			t.Fatal("its waits have not failed")
		}
		a.close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		half.close()
		other.close()
		if m := &b.memory; m.held != 0 || m.leaving != 0 || m.holders.Len() != 0 {
			t.Errorf("all have gone, and %d bytes are held, %d of them leave", m.held, m.leaving)
		}
	})
}

// While connections hold much, the collector leaves little garbage beside it.
func TestCollectorWhileMemoryIsScarce(t *testing.T) {
	const usual = 150
	defer debug.SetGCPercent(debug.SetGCPercent(usual))
	b := newLedger()
	a := b.account(1)
	for i, step := range []struct{ n, percent int }{
		{room / 2, usual}, {1, scarceGC}, {-room / 4, scarceGC}, {-1, scarceGC}, {-1, usual}, {room / 4, usual}, {room / 2, scarceGC},
	} {
		if step.n > 0 {
			must.Succeed(t, a.Reserve(step.n))
		} else {
			a.Give(-step.n)
		}
		if got := debug.SetGCPercent(usual); got != step.percent {
			t.Errorf("step %d: the collector's percentage is %d, want %d", i, got, step.percent)
		} else {
			debug.SetGCPercent(got)
		}
	}
	a.close()
	if got := debug.SetGCPercent(usual); got != usual {
		t.Errorf("at the end it is %d", got)
	}
}

// The held memory is the sum of the connections' parts, and within the bound.
func TestMemoryIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newLedger()
		accounts := make([]*account, 12)
		for i := range accounts {
			accounts[i] = b.account(uint32(i % 4))
		}
		held := map[*account]int64{}
		pick := func(t *rapid.T) *account { return rapid.SampledFrom(accounts).Draw(t, "account") }
		grow := func(t *rapid.T, take func(*account, int)) {
			a, n := pick(t), rapid.IntRange(room/20, room/5).Draw(t, "bytes")
			live := a.over.Load() == nil
			take(a, n)
			if live && a.over.Load() == nil {
				held[a] += int64(n)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) { grow(t, func(a *account, n int) { _ = a.Reserve(n) }) },
			"take": func(t *rapid.T) {
				grow(t, func(a *account, n int) {
					if a.Take(n); a.over.Load() != nil {
						a.Give(n)
					}
				})
			},
			"give": func(t *rapid.T) {
				a := pick(t)
				a.Give(int(held[a]))
				held[a] = 0
			},
			"close": func(t *rapid.T) {
				i := rapid.IntRange(0, len(accounts)-1).Draw(t, "closed")
				delete(held, accounts[i])
				accounts[i].close()
				accounts[i] = b.account(uint32(i % 4))
			},
			"": func(t *rapid.T) {
				sum, holders := int64(0), 0
				for _, a := range accounts {
					if a.over.Load() != nil {
						held[a] = 0
					}
					if sum += held[a]; held[a] > 0 {
						holders++
					}
				}
				if m := &b.memory; sum != m.held || sum > room || m.leaving != 0 || holders != m.holders.Len() {
					t.Fatalf("%d hold %d bytes, counted are %d with %d, %d of them leave", holders, sum, m.holders.Len(), m.held, m.leaving)
				}
			},
		})
	})
}

// halfMessage is the beginning of a message that is not going to end.
func halfMessage() []byte {
	return request(1, strings.Repeat("x", wire.MaxMessage-100), []any{})[:wire.MaxMessage-1000]
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
	r.server.bounds.mu.Lock()
	defer r.server.bounds.mu.Unlock()
	return r.server.bounds.memory.held
}

// Half messages take no more than the budget: messages that stand still lose theirs, and their
// peers hear why. A whole message always has room, however large, and all is given back.
func TestHalfMessagesAreWithinTheBudget(t *testing.T) {
	const limit, connections = 32 << 20, 40
	for _, engine := range engines {
		r := newRig(t, func(s *setup) { s.loop, s.MemoryLimit, s.patience.message = engine.loop, limit, time.Hour }).start()
		most := r.server.limits.Load().memory()
		var highest, stayed atomic.Int64
		watched, watching := make(chan struct{}), sync.WaitGroup{}
		watching.Go(func() {
			for {
				select {
				case <-watched:
					return
				default:
					m := &r.server.bounds.memory
					r.server.bounds.mu.Lock()
					used, leaving := m.held, m.leaving
					r.server.bounds.mu.Unlock()
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
			if got.id != 0 || got.err == nil || got.err.Code != wire.CodeOverloaded || !strings.Contains(got.err.Message, keyMemory) {
				t.Fatalf("%s: a connection that loses its message hears %+v", engine.name, got)
			}
		}
		other := r.dial()
		other.send(request(7, strings.Repeat("y", wire.MaxMessage-100), []any{}))
		other.wantError(other.receive(), wire.CodeUnknownMethod)
		other.id()
		close(watched)
		watching.Wait()
		// The event loop does not wait until the victims of its reads are gone.
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

// So do answers that no peer reads.
func TestUnreadAnswersAreWithinTheBudget(t *testing.T) {
	const connections = 200
	for _, engine := range engines {
		r := newRig(t, wide, func(s *setup) {
			s.loop, s.MemoryLimit, s.source = engine.loop, 1, clock.System{}
			s.patience.write, s.patience.refuse = time.Hour, time.Millisecond
		}).start()
		for range connections {
			p := r.dial()
			go func() { _, _ = p.Write(bytes.Repeat(request(1, "NextIDs", []any{64}), 10_000)) }()
		}
		await.Eventually(t, "some have lost their connections", func() bool { return r.server.bounds.watched().Ended > 0 && r.held() <= 2*wire.MaxMessage })
		r.dial().id()
	}
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
	c.evict()
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := (*patientReader)(c).Read(make([]byte, 10)); !errors.Is(err, io.EOF) {
		t.Errorf("read: %v", err)
	}
	if _, err := (*patientWriter)(c).Write(make([]byte, 16<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write: %v", err)
	}
}
