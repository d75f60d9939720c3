package search

import (
	"fmt"
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
	sealedBeforeSending       rule = "the generator is sealed before the release is sent"
	removedBeforeSending      rule = "a lease leaves the live state before its release is sent"
	releaseCoversLastEmbedded rule = "a release's timestamp is at least the last embedded one"
	unknownIsGone             rule = "a lease whose release was not answered is gone"
	sentOnce                  rule = "a release is sent once"
	markExclusive             rule = "the mark is exclusive"
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
}

func TestNoTwoIDsAreEqual(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // a world is short-lived, and small
	for _, w := range worlds {
		mustHold(t, w.name, newLeases(w.world), depthOf(t, w.fast, w.deep))
	}
}

// depthOf is how deep a search goes in this ring.
func depthOf(t *testing.T, fast, deep int) int {
	t.Helper()
	if ring.IsDeep(t) {
		return deep
	}
	return fast
}

func TestEachRuleIsNeeded(t *testing.T) {
	ring.WithoutRace(t)
	oneSlot, layouts, quarantine := worlds[0].world, worlds[1].world, worlds[2].world
	later := oneSlot
	later.times++ // after the first reservation
	without := func(r rule, s leasesSetting, moves int) broken {
		s.off = r
		return broken{r, newLeases(s), moves, moves > 7}
	}
	mustBreak(t, []broken{
		without(markExclusive, oneSlot, 5),
		without(embeddedTimestampChecked, later, 7),
		without(overlapByRange, layouts, 7),
		without(quarantineKept, quarantine, 7),
		without(recordKept, oneSlot, 11),
		without(endBoundAtRelease, oneSlot, 11),
		without(sealedBeforeSending, oneSlot, 11),
		without(removedBeforeSending, oneSlot, 12),
		without(releaseCoversLastEmbedded, oneSlot, 11),
		without(unknownIsGone, oneSlot, 13),
		without(sentOnce, oneSlot, 13),
	})
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
		if w.deep && !ring.IsDeep(t) {
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
