package daemon

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// Of the connections of one user that wait for memory, one looks whether there is room when
// some is given back. One that is made to end does not wait for its turn.
func TestOneOfAUserLooksForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const crowd = 100
		b := newLedger(Limits{MemoryLimit: 2 * wire.MaxMessage * bytesShare, UserMemory: 2 * wire.MaxMessage})
		b.stuck = true
		half := b.account(1)
		must.Succeed(t, half.Reserve(2*wire.MaxMessage))
		var asks []*account
		for range crowd {
			a := b.account(1)
			asks = append(asks, a)
			go func() { _ = a.Reserve(1000) }()
			synctest.Wait()
		}
		if half.over.Load() == nil || len(half.user.queue) != 1 {
			t.Fatalf("%d are in front, and the half message has %v", len(half.user.queue), half.over.Load())
		}
		waits := func() int { return strings.Count(await.Stacks(), "(*roomWait).wait(") }
		b.mu.Lock()
		asks[crowd/2].lose(b.exceeded(keyUserMemory, half.user))
		b.mu.Unlock()
		synctest.Wait()
		if n := waits(); n != crowd-1 {
			t.Errorf("%d wait after one of %d was made to end", n, crowd)
		}
		half.Release(2 * wire.MaxMessage)
		synctest.Wait()
		if n := waits(); n > 0 || len(half.user.queue) > 0 {
			t.Errorf("%d still wait", n)
		}
	})
}

// Room that is given back goes to the user with the least memory, even if others asked first. Otherwise
// users with much memory could keep that user waiting.
func TestRoomGoesToThePoorest(t *testing.T) {
	const ask = 1000
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			b := newLedger(Limits{MemoryLimit: 2 * wire.MaxMessage * bytesShare, UserMemory: 2 * wire.MaxMessage})
			b.stuck = true
			loses, keeps, other := b.account(1), b.account(1), b.account(2)
			for a, n := range map[*account]int{loses: wire.MaxMessage / 2, keeps: wire.MaxMessage / 2, other: wire.MaxMessage} {
				must.Succeed(t, a.Reserve(n))
			}
			b.mu.Lock()
			loses.moving = 0
			b.mu.Unlock()
			var done []string
			asks := func(name string, uid uint32) {
				a := b.account(uid)
				go func() {
					if err := a.Reserve(ask); err != nil {
						t.Error(err)
					}
					done = append(done, name)
				}()
				synctest.Wait()
			}
			asks("rich", 1)
			asks("poor", 3)
			loses.Release(ask / 2)
			if keeps.TryReserve(1) {
				t.Error("a richer user has got room that is too small for who waits")
			}
			for n, released := range []int{ask / 2, ask} {
				loses.Release(released)
				synctest.Wait()
				if len(done) != n+1 {
					t.Fatalf("there is room for %d: %v", n+1, done)
				}
			}
			if done[0] != "poor" || len(b.scarce) > 0 {
				t.Errorf("%v; %d still wait", done, len(b.scarce))
			}
			loses.Release(wire.MaxMessage/2 - 2*ask)
		})
	}
}

// Whatever of a connection waits for memory hears that the connection is made to end.
func TestAllWaitsOfAConnectionEndWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLedger(Limits{MemoryLimit: 2 * wire.MaxMessage * bytesShare, UserMemory: 2 * wire.MaxMessage})
		b.stuck = true
		half, a := b.account(1), b.account(1)
		must.Succeed(t, half.Reserve(2*wire.MaxMessage))
		ended := make(chan error, 2)
		for _, n := range []int{1000, 2000} {
			go func() { ended <- a.Reserve(n) }()
			synctest.Wait()
		}
		b.mu.Lock()
		a.lose(b.exceeded(keyUserMemory, a.user))
		b.mu.Unlock()
		synctest.Wait()
		if len(ended) != 2 {
			t.Errorf("%d of 2 have ended", len(ended))
		}
		half.Release(2 * wire.MaxMessage)
	})
}
