package daemon

import (
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

// Requests that wait for many IDs hold what they have so far: that is within the budget of
// their user, and free when they are answered or given up.
func TestBatchesThatWaitAreWithinTheBudget(t *testing.T) {
	const batch = 20_000
	for _, engine := range engines {
		r := newRig(t, func(s *setup) {
			s.EventLoop, s.MemoryLimit, s.UserMemory = engine.loop, 64<<20, 2*batch*rangeSize
		}).start()
		r.dial().ids(256)
		var peers []*peer
		for i := range 2 {
			p := r.dial()
			p.ask("NextIDs", batch, patient())
			r.waiters(i + 1)
			await.Eventually(t, "its memory is reserved", func() bool { return r.held() == int64(i+1)*batch*rangeSize })
			peers = append(peers, p)
		}
		p := r.dial()
		if got := p.fails(wire.CodeOverloaded, "NextIDs", batch, patient()); !strings.Contains(got.Message, keyUserMemory) {
			t.Errorf("%s: %v does not say what to change", engine.name, got)
		}
		_ = peers[0].Close()
		r.waiters(1)
		await.Eventually(t, "its memory is given back", func() bool { return r.held() == batch*rangeSize })
		for range batch/256 + 1 {
			r.clock.Advance(time.Millisecond)
		}
		await.Eventually(t, "the other is answered", func() bool {
			r.clock.Advance(time.Millisecond)
			return r.awaiting() == 0
		})
		peers[1].succeeds()
		await.Eventually(t, "nothing is held", func() bool { return r.held() == 0 })
	}
}

// So do watches of events, whose events wait for a peer that does not read.
func TestWatchesOfEventsAreWithinTheBudget(t *testing.T) {
	b := newLedger(Limits{UserMemory: streamSize})
	a := b.account(1)
	if err := a.holdStream(); err != nil || b.used != streamSize {
		t.Fatal(b.used, err)
	}
	if err := a.holdStream(); err == nil || !strings.Contains(err.Error(), keyUserMemory) {
		t.Errorf("one too many: %v", err)
	}
	if a.letGoStream(); b.used != 0 || b.holds != 0 {
		t.Errorf("%d bytes and %d holds are left", b.used, b.holds)
	}
}

// A request that waits for many IDs makes room as a message does: half messages give way,
// those of the user who has the most of them.
func TestBatchesThatWaitMakeRoom(t *testing.T) {
	const all, most = 4 * wire.MaxMessage, 3 * wire.MaxMessage
	for name, test := range map[string]struct {
		uid  uint32
		n    int64
		want string // the key of the refusal
	}{
		"another user":              {2, wire.MaxMessage + 1, ""},
		"the same user":             {1, wire.MaxMessage, ""},
		"the asker's own is spared": {1, 3 * wire.MaxMessage, keyUserMemory},
		"more than half messages":   {2, all, keyUserMemory},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLedger(Limits{MemoryLimit: all * bytesShare, UserMemory: most})
			asks := b.account(test.uid)
			var halves []*account
			for range 3 {
				halves = append(halves, b.account(1))
			}
			if test.want == keyUserMemory && test.uid == 1 {
				halves[0] = asks
			}
			for _, a := range halves {
				must.Succeed(t, a.Reserve(wire.MaxMessage))
			}
			err := b.reserve(asks.user, asks, test.n, "batches", "ask for fewer")
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Fatal(err)
			}
			if test.want == "" && (b.evicted[halves[0]] != 1 || len(b.evicted) != 1) {
				t.Errorf("%d connections gave way", len(b.evicted))
			}
			if b.evicted[asks] != 0 {
				t.Error("the connection gave way to itself")
			}
		})
	}
}
