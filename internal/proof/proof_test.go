package proof

import (
	"flag"
	"fmt"
	"strings"
	"testing"
)

var seeds = flag.Int("proof.seeds", 1500, "how many worlds to run for the proof")

// breachSeeds is how many worlds a breach has at least to show itself; most
// need a few.
const breachSeeds = 10_000

// eventsPerWorld is enough for several terms and lives of each host.
const eventsPerWorld = 1500

// TestNoTwoIDsAreEqual is the proof as a test.
func TestNoTwoIDsAreEqual(t *testing.T) {
	for _, real := range []bool{false, true} {
		regular, cached := 0, 0
		for seed := range uint64(*seeds) {
			w := newWorld(seed, noRule, real)
			if fault := w.run(eventsPerWorld); fault != "" {
				t.Fatalf("seed %d (memory provider: %v): %s", seed, real, fault)
			}
			regular, cached = regular+w.regular, cached+w.cached
		}
		if regular < *seeds*300 || cached < *seeds*50 {
			t.Errorf("only %d regular and %d cached fallback IDs in %d worlds: too little happens", regular, cached, *seeds)
		}
		t.Logf("memory provider %v: %d worlds, %d regular and %d cached fallback IDs, no two equal", real, *seeds, regular, cached)
	}
}

// TestEachRuleIsNeeded switches off one rule at a time: the simulation must
// find a duplicate. It prints the table of `make proof`.
func TestEachRuleIsNeeded(t *testing.T) {
	var table strings.Builder
	fmt.Fprintf(&table, "%-58s  %-50s  %-12s  %s\n", "rule switched off", "what happens instead", "first found", "the duplicate")
	for r := noRule + 1; r < allRules; r++ {
		found := false
		for seed := range uint64(max(*seeds, breachSeeds)) {
			w := newWorld(seed, r, false)
			if fault := w.run(eventsPerWorld); fault != "" {
				fmt.Fprintf(&table, "%-58s  %-50s  world %-6d  %s\n", r, ruleTexts[r].breach, seed, fault)
				found = true
				break
			}
		}
		if !found {
			t.Errorf("with the rule %q switched off, %d worlds went well: either it is not needed, or this simulation is blind to it", r, max(*seeds, breachSeeds))
		}
	}
	t.Logf("\n%s", table.String())
}
