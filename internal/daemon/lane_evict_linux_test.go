package daemon

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/wire"
)

// A request is refused for which nobody but its own connection could make room: what came
// behind it is answered.
func TestLaneBatchesThatWaitSpareTheirConnection(t *testing.T) {
	const batch, pings = maxLaneBatch, 3000
	r := newLaneRig(t, func(s *setup) { s.MemoryLimit, s.UserMemory = 64<<20, batch*rangeSize+1000 }).start()
	r.dial().ids(256)
	p := r.dial()
	rest := bytes.Repeat(request(3, "Ping", []any{}), pings)
	p.send(slices.Concat(request(1, "NextID", []any{patient()}), request(2, "NextIDs", []any{batch, patient()}), rest))
	r.waiters(1)
	if n := r.held(); n < pings {
		t.Errorf("%d bytes are held", n)
	}
	r.clock.Advance(time.Millisecond)
	if got := p.receive(); got.id != 1 || got.err != nil {
		t.Errorf("%+v", got)
	}
	got := p.receive()
	if p.wantError(got, wire.CodeOverloaded); got.id != 2 {
		t.Errorf("%+v", got)
	}
	for range pings {
		if got := p.receive(); got.id != 3 || got.err != nil {
			t.Fatalf("%+v", got)
		}
	}
}

// A connection that gives way before the loop has it is not added any more: it ends.
func TestLaneEvictsBeforeItAdmits(t *testing.T) {
	r := newLaneRig(t).start()
	p, server := unserved(t)
	r.lane()
	c := r.conn(server)
	r.server.mu.Lock()
	r.server.conns[c] = struct{}{}
	r.server.mu.Unlock()
	r.server.budget.mu.Lock()
	c.account.lose(wire.Errorf(wire.CodeOverloaded, "others need the memory"))
	r.server.budget.mu.Unlock()
	if !r.server.park(c) {
		t.Fatal("the lane does not take it")
	}
	got := p.receive()
	if p.wantError(got, wire.CodeOverloaded); got.id != 0 {
		t.Errorf("%+v", got)
	}
	_ = p.Close()
	r.open(0)
	r.inLaneAll(0, func(*parked) { t.Error("the loop has it still") })
}
