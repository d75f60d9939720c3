//go:build linux

package ids

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/internal/placement"
)

const rendezvousKey = "rendezvous"

// rendezvousMembers are how many members there are to choose from.
var rendezvousMembers = []int{3, 100, rendezvousBound}

// rendezvousBound is that of the target.
const rendezvousBound = 1000

const quantityLookupAllocations = "allocations"

func quantityLookup(members int) string  { return fmt.Sprintf("%d members", members) }
func rendezvousTitle(members int) string { return fmt.Sprintf("rendezvous over %d members", members) }

func rendezvousRow() row {
	each := func(p plan) time.Duration { return p.Duration / 4 }
	total := func(p plan) time.Duration { return time.Duration(2*len(rendezvousMembers)) * each(p) }
	r := row{
		key: rendezvousKey, help: "which of 1,000 members a key belongs to, in process: time and allocations per lookup",
		takes: func(p plan, _ int) time.Duration { return total(p) },
		measure: func(ctx context.Context, b *bench) error {
			measured := map[string]float64{}
			err := b.launch.Ask(ctx, 2*total(b.plan)+patience, &measured, "rendezvous", "-duration", each(b.plan).String())
			for quantity, value := range measured {
				b.add(rendezvousKey, kazahanad, quantity, value)
			}
			return err
		},
		note: "in process, another key each time; the cost is linear in the members: each costs one multiplicative mix and a comparison, since the hash of its name is kept",
	}
	figure := func(members int, quantity, measure string, format func(float64) string) {
		r.figures = append(r.figures, report.Figure{Row: rendezvousKey, Title: rendezvousTitle(members), Quantity: quantity, Measure: measure, Format: format, Alone: true})
	}
	for _, members := range rendezvousMembers {
		figure(members, quantityLookup(members), "µs/lookup", report.Microseconds)
	}
	figure(rendezvousBound, quantityLookupAllocations, "allocations", report.Whole)
	return r
}

// rendezvousMain is the sub-mode rendezvous.
func rendezvousMain(args []string) error {
	flags := flag.NewFlagSet("rendezvous", flag.ContinueOnError)
	duration := flags.Duration("duration", 500*time.Millisecond, "time for each number of members")
	if err := flags.Parse(args); err != nil {
		return err
	}
	testing.Init()
	if err := flag.Set("test.benchtime", duration.String()); err != nil {
		return err
	}
	measured := map[string]float64{}
	for _, members := range rendezvousMembers {
		result, err := lookups(members)
		if err != nil {
			return err
		}
		measured[quantityLookup(members)] = float64(result.T.Nanoseconds()) / float64(result.N)
		measured[quantityLookupAllocations] = max(measured[quantityLookupAllocations], float64(result.AllocsPerOp()))
	}
	return json.NewEncoder(os.Stdout).Encode(measured)
}

// lookups fails if one finds nobody, or all find the same one.
func lookups(n int) (testing.BenchmarkResult, error) {
	members := make([]placement.Member, n)
	for i := range members {
		members[i] = placement.Member{Authority: fmt.Sprintf("host-%d.example:7464", i), Token: int64(i + 1)}
	}
	topology := placement.NewTopology(members)
	const different = 4096
	keys := make([]placement.Key, different)
	for i := range keys {
		keys[i] = placement.Key{Kind: "room", Identity: fmt.Sprint(i)}
	}
	owners := map[string]bool{}
	for _, key := range keys {
		owner, ok := topology.Authority(key)
		if !ok {
			return testing.BenchmarkResult{}, errors.New("rendezvous: a key belongs to nobody")
		}
		owners[owner] = true
	}
	if len(owners) < n/2 {
		return testing.BenchmarkResult{}, fmt.Errorf("rendezvous: %d keys belong to only %d of %d members", different, len(owners), n)
	}
	return testing.Benchmark(func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			topology.Authority(keys[i%different])
		}
	}), nil
}
