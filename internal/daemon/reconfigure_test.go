package daemon

import (
	"os"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// TestAllowWhileServing: connections that are open stay, unless their peers are not allowed
// any more.
func TestAllowWhileServing(t *testing.T) {
	r := newRig(t, func(s *setup) { s.patience.refuse = time.Second }).start() // the peers that are turned out stay open
	me := uint32(os.Geteuid())
	early := r.dial()
	early.id()
	r.server.Allow([]uint32{me}, nil)
	early.id()
	waits := r.dial() // with half a request
	waits.id()
	waits.send([]byte{0x94, 0, 1})
	r.server.Allow([]uint32{me + 1}, nil)
	r.dial().fails(wire.CodePermissionDenied, "Ping")
	for _, p := range []*peer{early, waits} {
		p.wantError(p.receive(), wire.CodePermissionDenied)
		p.ends()
	}
	await.Eventually(t, "they are gone", func() bool { return r.server.connections() == 0 })
	r.server.Allow(nil, nil)
	r.dial().id()
}
