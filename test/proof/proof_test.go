package proof

import (
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/kazahana/kazahana/test/trace"
)

var seedsFlag = flag.Int("proof.seeds", 0, "how many worlds to run for the proof; 0 = as many as the ring has time for")

const (
	// The fast rings see that the worlds still run, the deep one that much happens in them.
	fewSeeds  = 24
	manySeeds = 240

	// breachSeeds is how many worlds a breach has to show itself; most need a few.
	breachSeeds = 2000

	// eventsPerWorld is enough for several terms and lives of each daemon.
	eventsPerWorld = 800

	// storyLines is how much of a story is told after a fault.
	storyLines = 60
)

// play runs one world in a bubble of its own.
func play(t *testing.T, s setting) (w *world) {
	defer func(r io.Reader) { rand.Reader = r }(rand.Reader)
	if s.whole {
		s.dir = disktest.MemoryIfAny(t)
		defer func() { must(os.RemoveAll(s.dir), nil) }()
	}
	synctest.Test(t, func(*testing.T) {
		w = newWorld(s)
		w.run(eventsPerWorld)
	})
	return w
}

// tellStory plays the world again and returns the end of its story.
func tellStory(t *testing.T, s setting) string {
	s.tell = true
	story := play(t, s).story
	return strings.Join(story[max(0, len(story)-storyLines):], "\n")
}

// mustHappen is what the worlds of the proof must have seen, or they prove little.
var mustHappen = []string{
	"answers mixed up", "backups put back", "backups taken", "disks frozen", "file systems full", "files lost or damaged",
	"folders moved to another live directory", "killed during a call", "killed in the middle of a write", "leases adopted",
	"leases extended", "leases granted", "leases kept at a stop", "leases released", "live state not written", "long pauses",
	"files moved to another folder", "machines booted", "machines cloned", "messages delayed", "moved back",
	"releases refused or not sent", "releases without an answer", "requests that waited", "start failed",
	"state directories swapped", "state file not written", "stores restored",
}

// TestNoTwoIDsAreEqual is the proof as a test.
func TestNoTwoIDsAreEqual(t *testing.T) {
	seeds := *seedsFlag
	if seeds == 0 && ring.IsDeep(t) {
		seeds = manySeeds
	} else if seeds == 0 {
		seeds = fewSeeds
	}
	happened, shown, pairs := map[string]int{}, map[string]int{}, 0
	for _, real := range []bool{false, true} {
		regular, cached := 0, 0
		for seed := range uint64(seeds) {
			s := setting{seed: seed, focus: rule(seed % uint64(allRules)), real: real}
			w := play(t, s)
			if w.fault != "" { // seeds 000-2.1-2, 000-2.3-3, 000-4.4-4 and 000-A.9-1
				t.Fatalf("seed %d (memory provider: %v): %s\n%s", seed, real, w.fault, tellStory(t, s))
			}
			regular, cached, pairs = regular+w.regular, cached+w.cached, pairs+w.followed.Pairs
			for what, n := range w.happened {
				happened[what] += n
			}
			for _, s := range w.trail.Steps {
				shown[s.Do]++
			}
		}
		if regular < seeds*500 || cached < seeds*150 {
			t.Errorf("only %d regular and %d cached fallback IDs in %d worlds: too little happens", regular, cached, seeds)
		}
		t.Logf("memory provider %v: %d worlds, %d regular and %d cached fallback IDs, no two equal", real, seeds, regular, cached)
	}
	t.Logf("the trace of each world was followed through docs/model/Pool.tla, with %d pairs of grants on one slot, no two equal IDs; steps: %v", pairs, shown)
	for _, do := range trace.PoolActions() {
		if shown[do] == 0 && seeds >= manySeeds {
			t.Errorf("%s never happened in the traces", do)
		}
	}
	if pairs < seeds*100 {
		t.Errorf("only %d pairs of grants on one slot: too little happens", pairs)
	}
	for _, what := range mustHappen {
		if seeds >= manySeeds && happened[what] < seeds/20 {
			t.Errorf("%q happened %d times in %d worlds", what, happened[what], 2*seeds)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(happened)) {
		t.Logf("%8d %s", happened[what], what)
	}
}

// TestEachRuleIsNeeded switches off one rule at a time: the simulation must
// find a duplicate. It prints the table of `make proof`.
func TestEachRuleIsNeeded(t *testing.T) {
	ring.Deep(t)
	var table strings.Builder
	fmt.Fprintf(&table, "%-58s  %-55s  %-11s  %s\n", "rule switched off", "what happens instead", "first found", "the duplicate")
	for r := noRule + 1; r < allRules; r++ {
		seed, fault := firstFault(t, setting{focus: r, off: true})
		if fault == "" { // seed 000-4.4-4
			t.Errorf("with the rule %q switched off, %d worlds went well: either it is not needed, or this simulation is blind to it", r, breachSeeds)
		}
		fmt.Fprintf(&table, "%-58s  %-55s  world %-5d  %s\n", r, ruleTexts[r].breach, seed, fault)
	}
	t.Logf("\n%s", table.String())
}

// firstFault plays worlds without a rule until one breaks a promise.
func firstFault(t *testing.T, s setting) (seed uint64, fault string) {
	for ; s.seed < breachSeeds && fault == ""; s.seed++ {
		fault = play(t, s).fault
	}
	return s.seed - 1, fault
}

// TestASeedRepeatsARun: one seed replays one run, with every rule kept or one of them
// switched off. Otherwise a fault could not be looked at again.
func TestASeedRepeatsARun(t *testing.T) {
	seeds := uint64(1)
	if ring.IsDeep(t) {
		seeds = 6
	}
	for r := noRule; r < allRules; r++ {
		for seed := range seeds {
			s := setting{seed: seed + uint64(r), focus: r, off: r != noRule && seed%2 == 1}
			first, again := play(t, s), play(t, s)
			if first.digest != again.digest || first.fault != again.fault || !maps.Equal(first.happened, again.happened) {
				t.Errorf("%v, seed %d: the second run differs: %q, %q", r, s.seed, first.fault, again.fault)
			}
			s.seed += uint64(allRules)
			if other := play(t, s); other.digest == first.digest {
				t.Errorf("%v: seed %d gives the IDs of another", r, s.seed)
			}
		}
	}
}
