package daemon

import (
	"strings"
	"testing"
	"time"

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
			peers = append(peers, p)
		}
		p := r.dial()
		if got := p.fails(wire.CodeOverloaded, "NextIDs", batch, patient()); !strings.Contains(got.Message, keyUserMemory) {
			t.Errorf("%s: %v does not say what to change", engine.name, got)
		}
		_ = peers[0].Close()
		r.waiters(1)
		if n := r.held(); n != batch*rangeSize {
			t.Errorf("%s: %d bytes are held", engine.name, n)
		}
		for range batch/256 + 1 {
			r.clock.Advance(time.Millisecond)
		}
		until(t, "the other is answered", func() bool {
			r.clock.Advance(time.Millisecond)
			return r.awaiting() == 0
		})
		if got := peers[1].receive(); got.err != nil {
			t.Error(got.err)
		}
		until(t, "nothing is held", func() bool { return r.held() == 0 })
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
