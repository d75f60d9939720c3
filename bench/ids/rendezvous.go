//go:build linux

package ids

import (
	"fmt"
	"testing"

	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/internal/placement"
)

const rendezvousKey = "rendezvous"

// rendezvousBound is the number of members that the target is about.
const rendezvousBound = 1000

// rendezvousMicros are lookups among more and more members.
var rendezvousMicros = []micro{lookup(3, 0), lookup(100, 0), lookup(rendezvousBound, 20e3)}

func lookup(members int, bound float64) micro {
	return micro{fmt.Sprintf("rendezvous over %d members", members), "µs/lookup", report.Microseconds, 1, bound,
		func() (testing.BenchmarkResult, error) { return lookups(members) }}
}

func rendezvousRow() row {
	return inProcessRow(rendezvousKey, "which of 1,000 members a key belongs to, in process: time and allocations per lookup",
		"in process, another key each time; the cost is linear in the members: each costs one multiplicative mix and a comparison, since the hash of its name is kept")
}

// lookups fails if few members own a key.
func lookups(n int) (testing.BenchmarkResult, error) {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("host-%d.example:7464", i)
	}
	choose := placement.Rendezvous(names)
	const different = 4096
	keys := make([]placement.Key, different)
	for i := range keys {
		keys[i] = placement.Key{Kind: "room", Identity: fmt.Sprint(i)}
	}
	owners := map[string]bool{}
	for _, key := range keys {
		owners[choose(key)] = true
	}
	if len(owners) < n/2 {
		return testing.BenchmarkResult{}, fmt.Errorf("rendezvous: %d keys belong to only %d of %d members", different, len(owners), n)
	}
	return testing.Benchmark(func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			choose(keys[i%different])
		}
	}), nil
}
