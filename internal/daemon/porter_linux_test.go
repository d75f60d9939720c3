package daemon

import (
	"bytes"
	"testing"
)

// The lane waits for no lock: others are served while connections that leave it, or end,
// wait for one.
func TestLaneWaitsForNoLock(t *testing.T) {
	r := newLaneRig(t, ample).start()
	other := r.dial()
	other.alive()
	half, heavy, gone := r.dial(), r.dial(), r.dial()
	for _, p := range []*peer{half, heavy, gone} {
		p.alive()
	}
	r.placed(4, 0)
	r.server.mu.Lock()
	r.server.budget.mu.Lock()
	half.send(request(1, "NextID", []any{})[:5])
	heavy.ask("Status")
	_ = gone.Close()
	for range 100 {
		other.id()
	}
	r.server.budget.mu.Unlock()
	r.server.mu.Unlock()
	heavy.receive()
	half.send(request(1, "NextID", []any{})[5:])
	half.receive()
	r.placed(3, 0)
}

// What users get in the lane is shared among them, and not among their connections.
func TestLaneSharesAreOfUsers(t *testing.T) {
	r := newLaneRig(t, ample).start()
	a, b := r.dial(), r.dial()
	a.alive()
	b.alive()
	shares := map[*share]bool{}
	r.inLaneAll(2, func(p *parked) { shares[p.turn.Share] = true })
	if len(shares) != 1 || !shares[&r.user().share] {
		t.Errorf("two connections of one user have %d shares", len(shares))
	}
}

// Who waits for a peer has no place: neither for the rest of a message, nor for answers to
// be read, nor for IDs.
func TestThoseWhoWaitHaveNoPlace(t *testing.T) {
	r := newLaneRig(t, func(s *setup) { s.MaxConnections = 1000 }).start()
	r.dial().ids(256)
	for range maxRunning + maxUserRunning + 1 {
		half := r.dial()
		half.send(request(1, "NextID", []any{})[:5])
		unread, server := unserved(t)
		if err := server.SetWriteBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
		unread.send(bytes.Repeat(request(1, "Status", []any{}), 100))
		r.take(server)
		waits := r.dial()
		waits.send(append(request(1, "NextIDs", []any{maxLaneBatch + 1, patient()}), request(2, "Ping", []any{})...))
	}
	r.waiters(maxRunning + maxUserRunning + 1)
	other := r.dial()
	other.ask("Status") // which is not for the lane
	if got := other.receive(); got.err != nil {
		t.Errorf("%+v", got)
	}
	until(t, "nobody has a place", func() bool { return len(r.user().running) == 0 && len(r.server.budget.running) == 0 })
}
