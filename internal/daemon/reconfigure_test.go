package daemon

import (
	"os"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// TestSetLimitsWhileServing: connections that come from now on meet the new limits. Those
// that are open stay, unless their peers are not allowed any more.
func TestSetLimitsWhileServing(t *testing.T) {
	r := newRig(t, func(s *setup) { s.patience.refuse = time.Second }).start() // the peers that are turned out stay open
	me := uint32(os.Geteuid())
	limits := Limits{MaxConnections: 1000, MaxInFlight: 1000, DrainTimeout: hang, AllowUIDs: []uint32{me}}
	early := r.dial()
	early.id()
	r.server.SetLimits(limits)
	early.id()
	waits := r.dial() // with half a request
	waits.id()
	waits.send([]byte{0x94, 0, 1})
	limits.AllowUIDs = []uint32{me + 1}
	r.server.SetLimits(limits)
	r.dial().fails(wire.CodePermissionDenied, "Ping")
	for _, p := range []*peer{early, waits} {
		p.wantError(p.receive(), wire.CodePermissionDenied)
		p.ends()
	}
	await.Eventually(t, "they are gone", func() bool { return r.server.connections() == 0 })
	limits.AllowUIDs, limits.MaxConnections = []uint32{me}, 1
	r.server.SetLimits(limits)
	early = r.dial()
	early.id()
	r.dial().fails(wire.CodeOverloaded, "Ping")
	limits.MaxConnections, limits.MaxInFlight = 10, 0
	r.server.SetLimits(limits)
	r.dial().fails(wire.CodeOverloaded, "NextIDs", 1<<9) // more than a millisecond has
	limits.MaxInFlight, limits.DrainTimeout = 1000, 3*time.Second
	r.server.SetLimits(limits)
	if got := r.server.DrainTimeout(); got != 3*time.Second {
		t.Errorf("drain timeout %v", got)
	}
}
