package search

import (
	"crypto/rand"
	"io"
	"runtime/debug"
	"testing"
	"testing/synctest"

	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// bounded is a world whose every state is looked at, to a depth: that of the fast rings, and
// that of the deep one.
type bounded struct {
	name       string
	begin      func() world
	fast, deep int
}

func mustAllHold(t *testing.T, worlds []bounded) {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	for _, w := range worlds {
		mustHold(t, w.name, w.begin, depthOf(t, w.fast, w.deep))
	}
}

func TestOneHostRelies(t *testing.T) {
	mustAllHold(t, []bounded{
		{"locks on a store that falls back", newLocks(locksSetting{ticks: 4, requests: 3, forgets: true}), 5, 9},
		{"locks that are idle for an hour", newLocks(locksSetting{ticks: 4, requests: 3, lapses: true}), 5, 9},
	})
}

func TestEachRuleOfLocksIsNeeded(t *testing.T) {
	ring.WithoutRace(t)
	plain := locksSetting{ticks: 4, requests: 3}
	idle := locksSetting{requests: 2, lapses: true}
	falls := locksSetting{ticks: 2, leaps: true, requests: 3, forgets: true, without: []int8{renews, releases, asksAgain, givesUp}}
	fallsEarly := falls
	fallsEarly.requests = 2
	repeats := locksSetting{ticks: 2, requests: 2, without: []int8{renews, releases, looksUp, givesUp}}
	late := locksSetting{ticks: 2, leaps: true, requests: 4, without: []int8{renews, asksAgain, looksUp}}
	without := func(r rule, s locksSetting, moves int) broken {
		s.off = r
		return broken{r, newLocks(s), moves, moves > 8}
	}
	mustBreak(t, []broken{
		without(versionCompared, plain, 5),
		without(carriedOutOnce, plain, 5),
		without(floorAtDeletion, idle, 5),
		without(floorCompared, idle, 6),
		without(floorOfLife, fallsEarly, 6),
		without(fenceKept, fallsEarly, 8),
		without(countedFromSent, repeats, 8),
		without(cutOff, locksSetting{requests: 3}, 8),
		without(leftShown, repeats, 10),
		without(lifeCompared, falls, 11),
		without(leaseNamed, late, 13),
	})
}

// A host's own time passes in a bubble.
func TestOneClientOfHostsRelies(t *testing.T) {
	plain := holdersSetting{ticks: 6, asks: 3}
	loses := plain
	loses.lost = 1
	late := holdersSetting{ticks: 3, asks: 2, off: countedFromSent}
	synctest.Test(t, func(t *testing.T) {
		mustAllHold(t, []bounded{
			{"lock hosts, nothing is lost", newHolders(plain), 6, 10},
			{"lock hosts, one message is lost or late", newHolders(loses), 5, 9},
		})
		mustBreak(t, []broken{
			{countedFromSent, newHolders(late), 9, true},
		})
	})
}

// In a bubble the request IDs of blocks tell the same time each time.
func TestNoValueComesTwice(t *testing.T) {
	defer func(r io.Reader) { rand.Reader = r }(rand.Reader) // worlds of sequences replace it
	synctest.Test(t, func(t *testing.T) {
		mustAllHold(t, []bounded{
			{"sequences on a store that falls back", newSequences(sequencesSetting{calls: 3, forgets: true}), 5, 8},
			{"sequences with blocks", newSequences(sequencesSetting{calls: 3, block: 3, forgets: true}), 4, 7},
		})
	})
}

func TestEachRuleOfSequencesIsNeeded(t *testing.T) {
	ring.WithoutRace(t)
	defer func(r io.Reader) { rand.Reader = r }(rand.Reader)
	without := func(r rule, forgets bool, moves int) broken {
		return broken{r, newSequences(sequencesSetting{calls: 3, forgets: forgets, off: r}), moves, moves > 7}
	}
	mustBreak(t, []broken{
		without(callOnce, false, 3),
		without(versionCompared, false, 5),
		without(doubtKept, true, 6),
		without(lifeCompared, true, 8),
	})
}

// Clients that extend their leases make no two equal IDs.
func TestExtensionsKeepIDsApart(t *testing.T) {
	oneSlot := leasesSetting{times: 5, term: 2, quarantine: 1, layouts: []int{0, 0}, grants: 3}
	layouts := oneSlot
	layouts.layouts = []int{0, 1}
	mustAllHold(t, []bounded{
		{"leases that are extended", newExtended(oneSlot), 3, 6},
		{"extensions, two layouts that overlap", newExtended(layouts), 3, 6},
	})
	waits, bounds := layouts, layouts
	waits.off, bounds.off = extendWaits, releaseCoversLastEmbedded
	mustBreak(t, []broken{
		{extendWaits, newExtended(waits), 5, true},
		{releaseCoversLastEmbedded, newExtended(bounds), 4, false},
	})
}

// calm is a world of placement in which nothing is lost or late, but by other bounds.
var calm = placesSetting{ttl: 2}

func TestOneProcessRelies(t *testing.T) {
	calmly, joining, roughly, kinds := calm, calm, calm, calm
	calmly.ticks, calmly.apart = 3, true
	joining.ticks, joining.joins = 3, true
	roughly.ticks, roughly.most = 3, 2
	kinds.ticks, kinds.most, kinds.kinds = 3, 2, true
	mustAllHold(t, []bounded{
		{"placement, nothing is lost", newPlaces(calmly), 5, 10},
		{"placement, hosts become members", newPlaces(joining), 5, 10},
		{"placement, two accidents", newPlaces(roughly), 4, 8},
		{"placement, processes come and go", newPlaces(kinds), 4, 7},
	})
}

func TestEachRuleOfPlacementIsNeeded(t *testing.T) {
	ring.WithoutRace(t)
	stops, late, joins, apart := calm, calm, calm, calm
	stops.most, stops.without = 1, []int8{looksDue, neverHears, processDies, hostCrashes, answerIsLost, comesLate}
	stopsLong := stops
	stopsLong.ttl, stopsLong.ticks = 4, 3
	late.most, late.without = 2, []int8{neverHears, processDies, hostCrashes, hostStops}
	joins.ticks, joins.joins, joins.without = 2, true, []int8{looksDue}
	apart.ticks, apart.apart, apart.without = 2, true, []int8{looksDue}
	without := func(r rule, s placesSetting, moves int) broken {
		s.off = r
		return broken{r, newPlaces(s), moves, moves > 11}
	}
	mustBreak(t, []broken{
		without(newerOnly, late, 6),
		without(tokenKept, late, 7),
		without(ownerEnded, calm, 8),
		without(begunInTime, apart, 9),
		without(promiseBounded, apart, 9),
		without(membershipKept, stops, 9),
		without(patienceKept, stops, 11),
		without(countedFromBefore, joins, 14),
		without(promiseShort, stopsLong, 14),
	})
}
