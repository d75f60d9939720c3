package snowflake

import (
	"testing"

	"pgregory.net/rapid"
)

// A sample sorts below new IDs exactly with the latest epoch or an earlier one.
func TestLatestEpoch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layout := drawLayout(t)
		now := rapid.Int64Range(1, 1<<42).Draw(t, "now")
		tl := Timeline{BitTS: layout.BitTS}
		var b Before
		for range rapid.IntRange(1, 3).Draw(t, "count") {
			b.Add(ID(rapid.Int64Range(0, 1<<62).Draw(t, "old")), tl, layout)
		}
		tl.EpochMS = b.LatestEpochMS(tl, now)
		if tl.Contains(now) && !b.SortsBelow(tl, now) {
			t.Fatalf("with the epoch %d new IDs do not sort above %d", tl.EpochMS, b.Largest)
		}
		if at := b.PassedAtMS(tl); tl.Contains(at) && (!b.SortsBelow(tl, at) || b.SortsBelow(tl, at-1)) {
			t.Fatalf("%d is passed at %d", b.Largest, at)
		}
		tl.EpochMS++
		if b.SortsBelow(tl, now) {
			t.Fatalf("a later epoch than the latest, %d, does too", tl.EpochMS)
		}
	})
}

func TestFreeRange(t *testing.T) {
	layout, tl := DefaultLayout(), DefaultTimeline()
	sample := func(machines ...int64) *Before {
		b := &Before{}
		for i, m := range machines {
			low := layout.Slot(m).Start + 7
			if i%2 == 1 {
				low |= tl.FallbackBit()
			}
			b.Add(tl.ID(tl.EpochMS+5, low), tl, layout)
		}
		return b
	}
	for _, c := range []struct {
		machines         []int64
		low, end         int64
		first, last      int64
		none             bool
		fallbacks, count int
	}{
		{[]int64{0, 1, 2}, 0, 8192, 3, 8191, false, 1, 3},
		{[]int64{8191, 5000, 5000}, 0, 8192, 0, 4999, false, 1, 3},
		{[]int64{10, 20}, 10, 21, 11, 19, false, 1, 2},
		{[]int64{10, 20}, 0, 5, 0, 4, false, 1, 2},
		{[]int64{0, 1}, 0, 2, 0, 0, true, 1, 2},
		{[]int64{5}, 5, 6, 0, 0, true, 0, 1},
	} {
		b := sample(c.machines...)
		first, last, ok := b.FreeRange(c.low, c.end)
		if ok == c.none || first != c.first || last != c.last || b.Fallbacks != c.fallbacks || b.Count != c.count {
			t.Errorf("%v in [%d, %d): %d-%d, %v; %d of %d are fallback IDs", c.machines, c.low, c.end, first, last, ok, b.Fallbacks, b.Count)
		}
	}
}
