package daemon

import (
	"fmt"
	"os"
	"testing"

	"github.com/kazahana/kazahana/internal/operator/quota"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
	"go.uber.org/zap/zaptest/observer"
)

// Each refusal by quota is seen: in the status, with its key, its value and the user, as
// a metric, and in the log.
func TestRefusalsByQuotaAreSeen(t *testing.T) {
	me := fmt.Sprint("UID ", os.Getuid())
	process := fmt.Sprintf("process %d of %s", os.Getpid(), me)
	for name, test := range map[string]struct {
		change func(*setup)
		refuse func(*rig)
		want   quota.Refusal
	}{
		"connections of a process": {
			func(s *setup) { s.MaxConnections = 1 },
			func(r *rig) { r.dial().fails(wire.CodeOverloaded, "Ping") },
			quota.Refusal{Quota: "max_connections", Limit: 1, Whose: process},
		},
		"connections of a user": {
			func(s *setup) { s.MaxConnections, s.MaxConnectionsPerUser = 4, 1 },
			func(r *rig) { r.dial().fails(wire.CodeOverloaded, "Ping") },
			quota.Refusal{Quota: "max_connections_per_user", Limit: 1, Whose: me},
		},
		"waiting requests of a process": {
			func(s *setup) { s.MaxInFlight = 1 },
			func(r *rig) { r.waitsForID(); r.dial().fails(wire.CodeOverloaded, "NextID") },
			quota.Refusal{Quota: "max_in_flight", Limit: 1, Whose: process},
		},
		"half messages": {
			func(s *setup) { s.MemoryLimit = 8 << 20 },
			func(r *rig) { r.hoard(4) },
			quota.Refusal{Quota: "memory_limit", Limit: 2 << 20},
		},
		"IDs of requests that wait": {
			func(s *setup) { s.MemoryLimit = 8 << 20 },
			func(r *rig) { r.waitsForID(); r.dial().fails(wire.CodeOverloaded, "NextIDs", 1<<16) },
			quota.Refusal{Quota: "memory_limit", Limit: 2 << 20},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, test.change).start()
			r.dial().alive()
			test.refuse(r)
			said := func() []observer.LoggedEntry {
				return r.logs.FilterMessage("a quota is used up: requests are refused").All()
			}
			await.Eventually(t, "the refusal is seen", func() bool { return len(said()) > 0 })
			if got := r.server.Status().Overload[0]; got.Refusal != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if r.value("kazahana_quota_refusals_total", test.want.Quota) == 0 || r.value("kazahana_quota_refusals_total", "max_disk") != 0 {
				t.Error("the metric does not show it")
			}
			if lines := said(); len(lines) != 1 || lines[0].ContextMap()["whose"] != test.want.Whose || lines[0].ContextMap()["quota"] != test.want.Quota {
				t.Errorf("logged %v", lines)
			}
		})
	}
}

// waitsForID has a request wait for the next millisecond.
func (r *rig) waitsForID() {
	r.t.Helper()
	r.dial().ids(256)
	r.dial().ask("NextID", patient())
	r.waiters(1)
}
