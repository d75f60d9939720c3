package daemon

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// packaged is the memory_limit of the packaged manifests, and ofPeers what the peers of half messages
// take in the same process.
const (
	packaged = 256 << 20
	ofPeers  = 32 << 20
)

// attacks are what peers send that never read. Each is sent once on every connection.
var attacks = []struct {
	name        string
	limit       int64 // memory_limit
	connections int
	message     []byte
}{
	{"half messages", 2 * packaged, 2000, halfMessage()},
	{"messages that nearly fit", packaged, 3000, halfMessage()[:4000]},
	{"batches", packaged, 2000, bytes.Repeat(request(1, "NextIDs", []any{MaxBatch}), 100)},
	{"small batches", packaged, 2900, bytes.Repeat(request(1, "NextIDs", []any{100}), 1000)},
	{"pages", packaged, 20, bytes.Repeat(request(1, "Lock.List", []any{}), 1500)},
	{"pages on many connections", packaged, 1500, bytes.Repeat(request(1, "Lock.List", []any{}), 2)},
	{"sequences", packaged, 1000, bytes.Repeat(request(1, "Sequence.NextBatch", []any{"s", sequence.MaxCount}), 10)},
}

// No attack takes the process beyond the limit of the packaged manifests, half messages not even beyond half
// of theirs, and others are served meanwhile.
func TestAttacksStayWithinTheMemoryLimit(t *testing.T) {
	ring.All(t)
	if ring.Race {
		t.Skip("the race detector takes several times the memory, and keeps it")
	}
	for _, attack := range attacks {
		t.Run(attack.name, func(t *testing.T) {
			defer debug.SetGCPercent(debug.SetGCPercent(100))                      // other tests' accounts may have left less
			defer debug.SetMemoryLimit(debug.SetMemoryLimit(attack.limit / 3 * 2)) // as the daemon does
			r, _ := withLocks(t, wide, func(s *setup) {
				s.MaxConnections, s.MaxInFlight, s.MemoryLimit, s.source = 8192, 8192, attack.limit, clock.System{}
				s.patience.message, s.patience.write, s.patience.hangup = time.Hour, time.Hour, time.Second
			})
			innocent := r.dial()
			for i := range lock.MaxList {
				innocent.result("Lock.Acquire", fmt.Sprintf("%0*d", lock.MaxKey, i), options{"ttl_ms": 3_600_000})
			}
			debug.FreeOSMemory()
			before := resident(t)
			var peers []*peer
			for range attack.connections {
				p := r.dial()
				peers = append(peers, p)
				go func() { _, _ = p.Write(attack.message) }()
			}
			most := int64(0)
			for range 100 { // long enough to see its growth, on any machine that is not at a standstill
				most = max(most, resident(t))
				innocent.id()
				innocent.result("Lock.Acquire", "mine")
				innocent.result("Lock.Renew", "mine")
				innocent.result("Lock.Release", "mine")
				time.Sleep(20 * time.Millisecond)
			}
			t.Logf("%d MiB before, %d at most; %d connections, %d wait", before>>20, most>>20, r.server.connections(), r.awaiting())
			allowed := int64(packaged)
			if attack.limit > packaged {
				allowed += ofPeers
			}
			if most > allowed {
				t.Errorf("%d bytes are resident, and %d may be", most, allowed)
			}
			for _, p := range peers {
				_ = p.Close()
			}
		})
	}
}

// resident is the memory of this process that is in use, in bytes.
func resident(t *testing.T) int64 {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc")
	}
	statm, err := os.ReadFile("/proc/self/statm")
	must.Succeed(t, err)
	pages, err := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
	must.Succeed(t, err)
	return pages * int64(syscall.Getpagesize())
}
