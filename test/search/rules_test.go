package search

import (
	"fmt"
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// rule is one that a world can break. The words are those of docs/uniqueness.md.
type rule string

const (
	noRule                    rule = ""
	embeddedTimestampChecked  rule = "the embedded timestamp is checked against the lease"
	recordKept                rule = "a slot's record is kept"
	endBoundAtRelease         rule = "a release sets end = max(timestamp+1, created)"
	overlapByRange            rule = "slots are compared as ranges"
	quarantineKept            rule = "a slot is reserved until expired + quarantine"
	restoredStoreFenced       rule = "a restored store is fenced"
	sealedBeforeSending       rule = "the generator is sealed before the release is sent"
	removedBeforeSending      rule = "a lease leaves the live state before its release is sent"
	releaseCoversLastEmbedded rule = "a release's timestamp is at least the last embedded one"
	releasedNeverCached       rule = "a released lease is never the cached one"
	unknownIsGone             rule = "a lease whose release was not answered is gone"
	sentOnce                  rule = "a release is sent once"
	answersEchoed             rule = "an answer counts for its own request only"
	markExclusive             rule = "the mark is exclusive"
	markInLiveState           rule = "the mark is in the live state"
)

// worlds are those whose every state is looked at, to a depth: that of the fast rings,
// and that of the deep one.
var worlds = []struct {
	name       string
	world      leasesSetting
	fast, deep int
}{
	{"two daemons, one slot", leasesSetting{times: 3, term: 2, quarantine: 1, layouts: []int{0, 0}, grants: 2}, 7, 12},
	{"two layouts that overlap", leasesSetting{times: 3, term: 2, quarantine: 1, layouts: []int{0, 1}, grants: 3}, 6, 10},
	{"a long quarantine", leasesSetting{times: 5, term: 2, quarantine: 3, layouts: []int{0, 0}, grants: 3}, 6, 10},
	{"leases are verified all the time", leasesSetting{times: 3, term: 2, quarantine: 1, layouts: []int{0, 0}, grants: 2, verify: true}, 7, 12},
	{"a store that forgets", leasesSetting{times: 5, term: 2, quarantine: 1, layouts: []int{0, 0}, grants: 2, forgets: true}, 6, 9},
	{"answers that are mixed up", leasesSetting{times: 3, term: 2, quarantine: 1, layouts: []int{0, 0}, grants: 2, mixes: true}, 6, 11},
}

func TestNoTwoIDsAreEqual(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // a world is short-lived, and small
	for _, w := range worlds {
		mustHold(t, w.name, newLeases(w.world), depthOf(t, w.fast, w.deep))
	}
}

// depthOf is how deep a search goes in this run.
func depthOf(t *testing.T, fast, deep int) int {
	t.Helper()
	if goesDeep(t) {
		return deep
	}
	return fast
}

var searches int // that could go deep

// goesDeep reports whether the next search that takes long is done. In the deep ring it is,
// unless the run does a sample of them.
func goesDeep(t *testing.T) bool {
	t.Helper()
	searches++
	return ring.IsDeep(t) && ring.Sampled(t, searches)
}

// leasesBroken is each rule of leases that this search can break, with the moves that it takes.
func leasesBroken() []broken {
	oneSlot, layouts, quarantine := worlds[0].world, worlds[1].world, worlds[2].world
	later, forgets, mixes := oneSlot, oneSlot, worlds[5].world
	later.times++ // after the first reservation
	forgets.forgets = true
	fallback := oneSlot
	fallback.times, fallback.quarantine = 4, 2 // so that two are in fallback at one time
	without := func(r rule, s leasesSetting, moves int) broken {
		s.off = r
		return broken{r, newLeases(s), moves, moves > 7}
	}
	return []broken{
		without(markExclusive, oneSlot, 5),
		without(markInLiveState, oneSlot, 5),
		without(answersEchoed, mixes, 6),
		without(embeddedTimestampChecked, later, 7),
		without(overlapByRange, layouts, 7),
		without(quarantineKept, quarantine, 7),
		without(restoredStoreFenced, forgets, 8),
		without(releasedNeverCached, fallback, 11),
		without(recordKept, oneSlot, 11),
		without(endBoundAtRelease, oneSlot, 11),
		without(sealedBeforeSending, oneSlot, 11),
		without(removedBeforeSending, oneSlot, 12),
		without(releaseCoversLastEmbedded, oneSlot, 11),
		without(unknownIsGone, oneSlot, 13),
		without(sentOnce, oneSlot, 13),
	}
}

// elsewhere says, for each other rule of docs/uniqueness.md, why the search cannot break it. The
// simulation and docs/model/Pool.tla break all of them.
var elsewhere = map[string]string{
	"leases are adopted from the live state only":             "needs a boot. A daemon has no state directory here, and its live state is a value that survives each kill",
	"one process uses an identity":                            "needs a copy of a state directory: each daemon here is the only one of its identity",
	"a lost folder is written anew under a new identity":      "needs folders that are moved away and back: here there are none",
	"a lost folder is void":                                   "needs folders that are moved away and back: here there are none",
	"leases belong to one marks file, unchanged":              "needs files that are put back one by one: leases and mark are two values here",
	"an older leases file is refused":                         "needs files that are put back: internal/state, which compares them, is not in this world",
	"a copy of the leases file is refused":                    "needs inodes: internal/state, which compares them, is not in this world",
	"leases are adopted in the same boot of the same machine": "needs boots and machines: here there are none",
}

func TestEachRuleIsNeeded(t *testing.T) {
	ring.WithoutRace(t)
	mustBreak(t, leasesBroken())
}

// TestEachRuleHasItsPlace: each rule of docs/uniqueness.md is broken here, or it is said why not.
func TestEachRuleHasItsPlace(t *testing.T) {
	page, err := os.ReadFile("../../docs/uniqueness.md")
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]int{}
	for _, b := range leasesBroken() {
		places[string(b.rule)]++
	}
	for rule := range elsewhere {
		places[rule]++
	}
	rows := regexp.MustCompile(`(?m)^\| \d+ \| ([^|]+) \| `).FindAllStringSubmatch(string(page), -1)
	for _, row := range rows {
		if places[row[1]] != 1 {
			t.Errorf("%q is in %d of the two lists", row[1], places[row[1]])
		}
		delete(places, row[1])
	}
	if len(rows) < 23 || len(places) > 0 {
		t.Errorf("the page has %d rules, and lacks %v", len(rows), places)
	}
}

// broken is a world in which one rule is broken.
type broken struct {
	rule  rule
	begin func() world
	moves int  // of the shortest way to a broken promise
	deep  bool // the search takes long
}

// mustBreak fails the test where the search does not find the shortest way to a broken
// promise, which has so many moves.
func mustBreak(t *testing.T, worlds []broken) {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	for _, w := range worlds {
		if w.deep && !goesDeep(t) {
			continue
		}
		o := explore(w.begin, w.moves)
		switch {
		case o.fault == "":
			t.Errorf("without the rule %q, all of %d states kept the promise: either it is not needed, or the search is blind to it", w.rule, o.states)
		case o.depth != w.moves:
			t.Errorf("without the rule %q the promise is broken after %d moves, not %d", w.rule, o.depth, w.moves)
		}
		t.Log(fmt.Sprintf("%q: %s, after %d moves:\n    ", w.rule, o.fault, o.depth) + strings.Join(o.story, "\n    "))
	}
}
