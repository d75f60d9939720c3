package daemon

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
	"go.uber.org/zap/zaptest/observer"
)

// Each refusal because a limit is reached is seen: in the status and as a metric by its key, and
// in the log with the users and their shares.
func TestRefusalsAreSeen(t *testing.T) {
	process := fmt.Sprintf("process %d of UID %d", os.Getpid(), os.Getuid())
	for name, test := range map[string]struct {
		change func(*setup)
		refuse func(*rig)
		limit  string
		says   string
	}{
		"connections of a process": {
			func(s *setup) { s.MaxConnections = 1 },
			func(r *rig) { r.dial().fails(wire.CodeOverloaded, "Ping") },
			"max_connections", process + " has 1 connections",
		},
		"half messages": {
			func(s *setup) { s.MemoryLimit = 8 << 20 },
			func(r *rig) { r.hoard(12) },
			"memory_limit", "fill the 2097152 bytes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, test.change).start()
			r.dial().alive()
			test.refuse(r)
			said := func() []observer.LoggedEntry {
				return r.logs.FilterMessage("a limit is reached: clients are refused").All()
			}
			await.Eventually(t, "the refusal is seen", func() bool { return len(said()) > 0 })
			if got := r.server.Status().Overload; len(got) != 1 || got[0].Limit != test.limit {
				t.Errorf("got %+v, want %s", got, test.limit)
			}
			if r.value("kazahana_refusals_total", test.limit) == 0 || r.value("kazahana_refusals_total", "max_disk") != 0 {
				t.Error("the metric does not show it")
			}
			if lines := said(); len(lines) != 1 || !strings.Contains(fmt.Sprint(lines[0].ContextMap()["error"]), test.says) || lines[0].ContextMap()["limit"] != test.limit {
				t.Errorf("logged %v", lines)
			}
		})
	}
}
