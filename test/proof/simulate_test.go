package proof

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

const (
	fewWhole  = 3
	manyWhole = 60
)

// TestSimulation runs whole worlds: IDs, locks and sequences of the same daemons, which crash,
// and have clocks, disks, networks and stores that fail.
func TestSimulation(t *testing.T) {
	seeds := *seedsFlag
	if seeds == 0 && ring.IsDeep(t) {
		seeds = manyWhole
	} else if seeds == 0 {
		seeds = fewWhole
	}
	happened, meets := map[string]int{}, map[string]map[string]int{}
	lockSteps, placeSteps, withFiles := 0, 0, disktest.MemoryIfAny(t) != ""
	for seed := range uint64(seeds) {
		// The number of rules is odd: so each of them meets both providers.
		s := setting{seed: seed, focus: rule(seed % uint64(allWholeRules)), real: seed%2 == 0, whole: true}
		w := play(t, s)
		if w.fault != "" {
			t.Fatalf("seed %d: %s\n%s", seed, w.fault, tellStory(t, s))
		}
		lockSteps, placeSteps = lockSteps+w.lockSteps, placeSteps+w.placeSteps
		for what, n := range w.happened {
			happened[what] += n
		}
		for fault, in := range w.meets {
			if meets[fault] == nil {
				meets[fault] = map[string]int{}
			}
			for state, n := range in {
				meets[fault][state] += n
			}
		}
	}
	t.Logf("%d worlds, no promise broken\n%s", seeds, coverage(happened, meets))
	t.Logf("%d steps of locks were followed through docs/model/Locks.tla, and %d of actors through docs/model/Placement.tla", lockSteps, placeSteps)
	if lockSteps < seeds*500 || placeSteps < seeds*100 {
		t.Errorf("only %d steps of locks and %d of actors in %d worlds: too little happens", lockSteps, placeSteps, seeds)
	}
	for _, what := range mustHappenTogether {
		if seeds >= manyWhole && happened[what] < seeds/2 {
			t.Errorf("%q happened %d times in %d worlds", what, happened[what], seeds)
		}
	}
	// These two need the focus of a few worlds; with files, stores are restored in others too.
	rarely := slices.DeleteFunc(slices.Clone(mustHappen), func(what string) bool { return what == "long pauses" || what == "stores restored" })
	rarely = append(rarely, mustHappenOnRedis...)
	if withFiles {
		rarely = append(rarely, mustHappenOnFiles...)
	}
	for _, what := range rarely {
		if seeds >= manyWhole && happened[what] < seeds/20 {
			t.Errorf("%q happened %d times in %d worlds", what, happened[what], seeds)
		}
	}
	for _, fault := range slices.Sorted(maps.Keys(mustMeet)) {
		for _, state := range mustMeet[fault] {
			needsFiles := state == onSQLite.state() || strings.HasPrefix(fault, "SQLite")
			if seeds >= manyWhole && (withFiles || !needsFiles) && meets[fault][state] == 0 {
				t.Errorf("%q never met the state %q in %d worlds", fault, state, seeds)
			}
		}
	}
}

// mustHappenTogether is what whole worlds must have seen, or they show little.
var mustHappenTogether = []string{
	"actors activated", "actors found", "actors passivated", "actors relied on", "answers late", "answers lost", "backups put back", "disks frozen", "killed during a call", "killed in the middle of a write",
	"answers of lease servers lost", "lease servers out of reach", "requests to lease servers repeated",
	"leases adopted", "leases asked for in a model of Redis", "leases asked for in a model of etcd", "leases asked for in a model of PostgreSQL",
	"lock requests repeated", "locks granted", "locks renewed", "machines booted", "record stores fell back",
	"requests arrive after their caller has gone", "requests lost", "sequence requests repeated", "sequences declared", "values taken",
}

// mustHappenOnRedis is what those must have seen that lease from a model of it.
var mustHappenOnRedis = []string{
	"Redis replicas did not confirm", "Redis failed over without a fence", "Redis started from an older dump", "clock of Redis stepped during a call",
}

// mustHappenOnFiles lists the faults that worlds with SQLite files as stores must have seen.
var mustHappenOnFiles = []string{
	"SQLite file overwritten with an older copy", "SQLite file replaced by an older copy", "SQLite process killed between two operations",
	"SQLite process killed in the middle of a write", "SQLite log torn in the middle of a commit", "SQLite file on a frozen disk",
	"SQLite log lost what was written", "host of the SQLite file rebooted",
	"stores restored",
}

// mustMeet are the states that a fault must have met. The rest of the table is for chance.
var mustMeet = map[string][]string{
	"answers late":                                   slices.Concat(ofDaemons, ofLocks, onAny),
	"answers lost":                                   slices.Concat(ofDaemons, ofLocks, onAny),
	"connections broken before the answer":           slices.Concat(ofDaemons, ofLocks, onAny),
	"requests lost":                                  slices.Concat(ofDaemons, ofLocks, onAny),
	"killed during a call":                           slices.Concat(ofDaemons, ofLocks, onAny, []string{"IDs waited for", "lease call under way", "daemon down"}),
	"killed in the middle of a write":                slices.Concat(ofDaemons, onAny, []string{"IDs waited for", "call under way", "store fenced"}),
	"disks frozen":                                   slices.Concat(ofDaemons, onAny, []string{"IDs waited for", "call under way", "actors activated"}),
	"files lost or damaged":                          slices.Concat(ofDaemons, onAny, []string{"IDs waited for", "lock kept", "call under way", "actors activated", "daemon down"}),
	"backups put back":                               slices.Concat(ofDaemons, onAny, []string{"daemon down", "call under way"}),
	"machines booted":                                onAny,
	"leases adopted":                                 onAny,
	"requests to lease servers lost":                 slices.Concat(ofDaemons, onAny, []string{"lease call under way"}),
	"record stores fell back":                        slices.Concat(ofDaemons, []string{"lock kept", "call under way", "actors activated", "store fenced", "on Redis", "on PostgreSQL", "on SQLite"}),
	"SQLite file on a frozen disk":                   slices.Concat(ofDaemons, ofLocks),
	"SQLite log torn in the middle of a commit":      slices.Concat(ofDaemons, []string{"lock kept", "call under way", "actors activated"}),
	"SQLite log lost what was written":               {"call under way"},
	"SQLite process killed in the middle of a write": slices.Concat(ofDaemons, ofLocks),
	"Redis restarted":                                {"call under way", "on Redis"},
	"Redis replica promoted":                         {"call under way", "on Redis"},
	"Redis primary demoted and promoted again":       {"on Redis"},
	"Redis has another replication ID":               {"on Redis"},
	"etcd restored from what it had last":            {"call under way", "on etcd"},
	"PostgreSQL standby promoted":                    {"call under way", "on PostgreSQL"},
	"PostgreSQL started from a copy":                 {"call under way", "on PostgreSQL"},
	"PostgreSQL did not wait for a standby":          {"lock kept", "call under way", "on PostgreSQL"},
}

var (
	ofDaemons = []string{"leases held", "no lease"}
	ofLocks   = []string{"lock kept", "call under way", "actors activated", "store fenced"}
	onAny     = []string{onSQLite.state(), onRedis.state(), onEtcd.state(), onPostgres.state()}
)

// coverage is a table: which faults met which states.
func coverage(happened map[string]int, meets map[string]map[string]int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-46s %9s", "what happened", "times")
	for _, s := range states {
		fmt.Fprintf(&b, "  %s", s.name)
	}
	b.WriteByte('\n')
	for _, what := range mustHappen { // what never happened has a row too
		happened[what] += 0
	}
	for _, what := range slices.Sorted(maps.Keys(happened)) {
		fmt.Fprintf(&b, "%-46s %9d", what, happened[what])
		for _, s := range states {
			fmt.Fprintf(&b, "  %*d", len(s.name), meets[what][s.name])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// TestEachRuleOfTheWholeIsNeeded switches off one rule at a time: some world must break a
// promise, and keep it with the rule.
func TestEachRuleOfTheWholeIsNeeded(t *testing.T) {
	ring.Deep(t)
	for r := allRules + 1; r < allWholeRules; r++ {
		if r == watermarkKept && disktest.MemoryIfAny(t) == "" {
			t.Log("there is no file system in memory, and so no SQLite file has a watermark")
			continue
		}
		real := r == forgottenLeasesFenced || r == unconfirmedNotUsed // the leases are the product's
		seed, fault := firstFault(t, setting{focus: r, off: true, real: real, whole: true})
		if fault == "" {
			t.Errorf("without the rule that %s, %d worlds went well", wholeRules[r].rule, breachSeeds)
		}
		if with := play(t, setting{seed: seed, focus: r, real: real, whole: true}).fault; with != "" {
			t.Errorf("with the rule that %s, the same world breaks a promise: %s", wholeRules[r].rule, with)
		}
		t.Logf("%s; when %s: world %d: %s", wholeRules[r].rule, wholeRules[r].breach, seed, fault)
	}
}

// TestASeedRepeatsAWholeRun compares two runs of one seed, line by line.
func TestASeedRepeatsAWholeRun(t *testing.T) {
	seeds := uint64(3)
	if ring.IsDeep(t) {
		seeds = 20
	}
	for seed := range seeds {
		s := setting{seed: seed, focus: rule(seed + 1), real: seed%2 == 0, whole: true, tell: true}
		if seed%3 == 2 {
			s.focus, s.real = watermarkKept, true // the stores are real files
		}
		first, again := play(t, s), play(t, s)
		if len(first.story) < eventsPerWorld {
			t.Errorf("seed %d: a story of %d lines tells little", seed, len(first.story))
		}
		for i, line := range first.story {
			if i >= len(again.story) || again.story[i] != line {
				t.Fatalf("seed %d, line %d: the second run differs:\n%s\n%s", seed, i, line, strings.Join(again.story[min(i, len(again.story)):min(i+1, len(again.story))], ""))
			}
		}
		if first.digest != again.digest {
			t.Errorf("seed %d: other IDs", seed)
		}
	}
}
