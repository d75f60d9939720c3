package snowflake

import (
	"maps"
	"slices"
)

// Before is a sample of the IDs of another system, as far as they are known.
type Before struct {
	Count             int
	Smallest, Largest ID
	// Machines are the machine IDs that the sample would have in the layout,
	// whether or not the fallback bit is set: cached fallback uses the same slots.
	Machines  map[int64]bool
	Fallbacks int // how many would be taken for fallback IDs
}

// Add counts an ID in.
func (b *Before) Add(id ID, tl Timeline, layout Layout) {
	if b.Count == 0 || id < b.Smallest {
		b.Smallest = id
	}
	b.Largest = max(b.Largest, id)
	b.Count++
	if tl.IsFallback(id) {
		b.Fallbacks++
	}
	if b.Machines == nil {
		b.Machines = map[int64]bool{}
	}
	b.Machines[tl.Low(id)&^tl.FallbackBit()>>layout.BitSeq] = true
}

// SortsBelow reports whether every ID of the sample is smaller than every ID that
// is made on the timeline from nowMS on.
func (b *Before) SortsBelow(tl Timeline, nowMS int64) bool {
	return tl.Contains(nowMS) && b.Largest < tl.ID(nowMS, 0)
}

// PassedAtMS is when IDs of the timeline are greater than the whole sample, in
// Unix milliseconds.
func (b *Before) PassedAtMS(tl Timeline) int64 { return tl.UnixMS(b.Largest) + 1 }

// LatestEpochMS is the latest epoch with which IDs from nowMS on are greater than
// the sample.
func (b *Before) LatestEpochMS(tl Timeline, nowMS int64) int64 {
	return nowMS - int64(b.Largest)>>tl.LowBits() - 1
}

// MachineIDs are the machine IDs of the sample, ascending.
func (b *Before) MachineIDs() []int64 { return slices.Sorted(maps.Keys(b.Machines)) }

// FreeRange is the longest range of machine IDs, both ends included, that the
// sample does not use, within [low, end). ok is false where there is none.
func (b *Before) FreeRange(low, end int64) (first, last int64, ok bool) {
	begin := low
	for _, used := range append(b.MachineIDs(), end) {
		if used < low || used > end {
			continue
		}
		if used > begin && (!ok || used-1-begin > last-first) {
			first, last, ok = begin, used-1, true
		}
		begin = used + 1
	}
	return first, last, ok
}
