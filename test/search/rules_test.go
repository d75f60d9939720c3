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
		depth := w.fast
		if ring.IsDeep(t) {
			depth = w.deep
		}
		mustHold(t, w.name, newLeases(w.world), depth)
	}
}

// TestEachRuleIsNeeded breaks one rule at a time: the search must find the shortest way
// to two equal IDs, which has so many moves.
func TestEachRuleIsNeeded(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	oneSlot, layouts, quarantine := worlds[0].world, worlds[1].world, worlds[2].world
	later := oneSlot
	later.times++ // after the first reservation
	for _, test := range []struct {
		rule  rule
		world leasesSetting
		moves int
	}{
		{markExclusive, oneSlot, 5},
		{embeddedTimestampChecked, later, 7},
		{overlapByRange, layouts, 7},
		{quarantineKept, quarantine, 7},
		{recordKept, oneSlot, 11},
		{endBoundAtRelease, oneSlot, 11},
		{sealedBeforeSending, oneSlot, 11},
		{removedBeforeSending, oneSlot, 12},
		{releaseCoversLastEmbedded, oneSlot, 11},
		{unknownIsGone, oneSlot, 13},
		{sentOnce, oneSlot, 13},
	} {
		if test.moves > 7 && !ring.IsDeep(t) {
			continue
		}
		test.world.off = test.rule
		o := explore(newLeases(test.world), test.moves)
		switch {
		case o.fault == "":
			t.Errorf("without the rule %q, all of %d states kept the promise: either it is not needed, or the search is blind to it", test.rule, o.states)
		case o.depth != test.moves:
			t.Errorf("without the rule %q the promise is broken after %d moves, not %d", test.rule, o.depth, test.moves)
		}
		t.Log(fmt.Sprintf("%q: %s, after %d moves:\n    ", test.rule, o.fault, o.depth) + strings.Join(o.story, "\n    "))
	}
}
