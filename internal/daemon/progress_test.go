package daemon

import (
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/provider/static"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

// prodded reports whether both loops take a turn when they are asked to.
func (r *rig) prodded() {
	r.t.Helper()
	accept, path := r.server.AcceptTurns(), r.server.FastPathTurns()
	await.Eventually(r.t, "both loops turn", func() bool {
		r.server.Prod()
		return r.server.AcceptTurns() > accept && r.server.FastPathTurns() > path
	})
}

// Loops with nothing to do turn when they are prodded, and no peer is refused by it.
func TestProd(t *testing.T) {
	r := newRig(t).start()
	<-r.server.Serving()
	for range 20 {
		r.prodded()
		r.dial().id()
	}
}

// TestStuckAcceptLoopTakesNoTurns: a loop that cannot take a connection in does not
// count, however often it is prodded.
func TestStuckAcceptLoopTakesNoTurns(t *testing.T) {
	r := newRig(t).start()
	<-r.server.Serving()
	r.prodded()
	held := make(chan struct{})
	stuck := make(chan struct{})
	go func() {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		close(stuck)
		<-held
	}()
	<-stuck
	r.dial()
	await.Eventually(t, "the loop is stuck on the connection, and prods turn it no more", func() bool {
		before := r.server.AcceptTurns()
		for range 10 {
			_ = r.server.progress.listener.Load().SetDeadline(time.Now()) // as Prod does, which would be stuck too
			time.Sleep(time.Millisecond)
		}
		return r.server.AcceptTurns() == before
	})
	close(held)
	r.prodded()
}

// Without a provider there is no keeper that could be stuck.
func TestKeeperTurns(t *testing.T) {
	r := newRig(t)
	turns := r.services["default"].KeeperTurns()
	before := turns()
	r.step()
	if turns() == before {
		t.Error("a step is no turn")
	}
	r = newRig(t, func(s *setup) { s.provider = static.None{} })
	if r.services["default"].KeeperTurns() != nil {
		t.Error("turns of a keeper that is not there")
	}
}
