package pool

import (
	"cmp"
	"slices"

	"github.com/kazahana/kazahana/internal/provider"
)

const (
	// spread is how many blocks an acquire looks at.
	spread = 4
	// maxBlocks is how many blocks a change grants from: with their pasts, the head, the
	// request and the counters, that is as many writes as a change may have.
	maxBlocks = 2
)

// ring is the machine IDs that some terms grant from, in the blocks of their pool.
type ring struct {
	ids    provider.IDRange
	bitSeq int
	shift  int   // as of head.shift
	since  int64 // as of layout.sinceMS
}

// ringOf returns the ring of the terms. For a layout that the pool refuses, it has no blocks of
// the pool.
func (h head) ringOf(t provider.Terms) ring {
	return ring{t.Range(), t.BitSeq, max(h.shift(t.BitSeq), 0), h.sinceMS}
}

// blocks are the numbers of its blocks: from low, and below end.
func (r ring) blocks() (low, end int64) { return r.ids.Low >> r.shift, (r.ids.End-1)>>r.shift + 1 }

// in is the machine IDs in a block.
func (r ring) in(block int64) (low, end int64) {
	return max(r.ids.Low, block<<r.shift), min(r.ids.End, (block+1)<<r.shift)
}

// pick returns some blocks: that of a machine ID, and its neighbours.
func (r ring) pick(from int64) (picked []int64) {
	low, end := r.blocks()
	for i := range min(end-low, spread) {
		picked = append(picked, r.nth(from, i))
	}
	return picked
}

// nth is the i-th block from that of a machine ID on, around the ring.
func (r ring) nth(from, i int64) int64 {
	low, end := r.blocks()
	return low + (from>>r.shift-low+i)%(end-low)
}

// free is a machine ID that can be granted.
type free struct {
	block, id int64
	since     int64
}

// earliest is the earlier of two times at which something is free; 0 and never stand for none.
func earliest(nextMS, otherMS int64) int64 {
	if otherMS == 0 || otherMS == never || nextMS != 0 && nextMS < otherMS {
		return nextMS
	}
	return otherMS
}

// freeIn returns the slots of a block that can be granted, and otherwise when the first can be.
// It is asked for all blocks of a pool that is nearly full, so it looks at each grant once.
func (r ring) freeIn(block int64, grants []grant, nowMS int64) (all []free, nextMS int64) {
	low, end := r.in(block)
	var some [1 << blockBits]int64
	ends := some[:0]
	for range end - low {
		ends = append(ends, r.since)
	}
	for _, g := range grants {
		slot := g.slot()
		for id := max(slot.Start>>r.bitSeq, low); id <= min((slot.End-1)>>r.bitSeq, end-1); id++ {
			ends[id-low] = max(ends[id-low], g.end)
		}
	}
	for i, since := range ends {
		switch {
		case since <= nowMS:
			all = append(all, free{block, low + int64(i), since})
		default:
			nextMS = earliest(nextMS, since)
		}
	}
	return all, nextMS
}

// choose takes up to n free slots: the longest free ones, and of equals the first after the
// machine ID from. No more than maxBlocks have a part.
func choose(all []free, from int64, n int) []free {
	slices.SortFunc(all, func(a, b free) int {
		return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(flag(a.id < from), flag(b.id < from)), cmp.Compare(a.id, b.id))
	})
	var taken []free
	var blocks []int64
	for _, f := range all {
		if !slices.Contains(blocks, f.block) {
			if len(blocks) == maxBlocks {
				continue
			}
			blocks = append(blocks, f.block)
		}
		if taken = append(taken, f); len(taken) == n {
			break
		}
	}
	return taken
}
