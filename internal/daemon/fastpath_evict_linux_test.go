package daemon

import (
	"testing"

	"github.com/kazahana/kazahana/internal/wire"
)

// A connection that gives way before the loop has it is not added any more: it ends.
func TestFastPathEvictsBeforeItAdmits(t *testing.T) {
	r := newFastPathRig(t).start()
	p, server := unserved(t)
	r.fastPath()
	c := r.conn(server)
	r.server.mu.Lock()
	r.server.conns[c] = struct{}{}
	r.server.mu.Unlock()
	r.server.bounds.mu.Lock()
	c.account.lose(wire.Errorf(wire.CodeOverloaded, "others need the memory"))
	r.server.bounds.mu.Unlock()
	if !r.server.park(c) {
		t.Fatal("the fast path does not take it")
	}
	got := p.receive()
	if p.wantError(got, wire.CodeOverloaded); got.id != 0 {
		t.Errorf("%+v", got)
	}
	_ = p.Close()
	r.open(0)
	r.onFastPathAll(0, func(*parked) { t.Error("the loop has it still") })
}
