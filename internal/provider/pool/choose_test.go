package pool

import (
	"slices"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"pgregory.net/rapid"
)

func TestTheLongestFreeIsChosen(t *testing.T) {
	all := []free{{0, 3, 40}, {0, 1, 0}, {1, 17, 20}, {2, 33, 10}, {0, 2, 0}, {1, 16, 20}, {0, 9, 0}}
	ids := func(chosen []free) (ids []int64) {
		for _, f := range chosen {
			ids = append(ids, f.id)
		}
		return ids
	}
	for _, test := range []struct {
		from int64
		n    int
		want []int64
	}{
		{0, 1, []int64{1}}, {2, 1, []int64{2}}, {3, 2, []int64{9, 1}}, {10, 4, []int64{1, 2, 9, 33}},
		{0, 9, []int64{1, 2, 9, 33, 3}}, // no third block
	} {
		// Seeds 000-6.2-2 and 001-11.
		if got := ids(choose(slices.Clone(all), test.from, test.n)); !slices.Equal(got, test.want) {
			t.Errorf("from %d, %d: %v, want %v", test.from, test.n, got, test.want)
		}
	}
}

// Of IDs that are free equally long, the first one after a random one is granted.
func TestTheChoiceBeginsAtRandom(t *testing.T) {
	for drawn := range int64(4) {
		s := newStage(t)
		p := s.open(within(10, 13))
		p.cfg.Random = func(n int64) int64 { return drawn % n }
		if l := s.acquire(p, provider.AcquireRequest{})[0]; l.ID != 10+drawn { // seed 001-16
			t.Errorf("%d was drawn, and machine ID %d is granted", drawn, l.ID)
		}
	}
}

// The blocks that an acquire looks at are neighbours around the ring, and each is looked at as often as the
// others.
func TestBlocksAreNeighbours(t *testing.T) {
	r := ring{ids: provider.IDRange{Low: 32, End: 32 + 10*16}, bitSeq: 8, shift: 4}
	low, end := r.blocks()
	if low != 2 || end != 12 {
		t.Fatalf("the blocks are %d to %d", low, end)
	}
	looked := map[int64]int{}
	for from := r.ids.Low; from < r.ids.End; from++ {
		for i, block := range r.pick(from) {
			if looked[block]++; i == 0 && block != from>>4 { // seeds 000-6.2-2 and 001-11
				t.Errorf("from machine ID %d on, block %d is the first", from, block)
			}
		}
	}
	for block := low; block < end; block++ {
		if looked[block] != 16*spread {
			t.Errorf("block %d is looked at %d times, want %d", block, looked[block], 16*spread)
		}
	}
	r.ids = provider.IDRange{Low: 40, End: 60}
	if got := r.pick(50); !slices.Equal(got, []int64{3, 2}) {
		t.Errorf("of two blocks are looked at %v", got)
	}
}

// A slot of a block is free where no grant overlaps it that has not ended, in any layouts.
func TestFreeIsWhatNothingOverlaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bitSeq := rapid.IntRange(4, 12).Draw(t, "bitSeq")
		h := head{layout: layout{bitSeq: 8}}
		r := ring{ids: provider.IDRange{Low: 0, End: 4 << (12 - bitSeq)}, bitSeq: bitSeq, shift: h.shift(bitSeq), since: rapid.Int64Range(0, 3).Draw(t, "since")}
		var grants []grant
		for range rapid.IntRange(0, 20).Draw(t, "grants") {
			width := rapid.IntRange(4, 12).Draw(t, "width")
			id := rapid.Int64Range(0, 1<<(12-width)-1).Draw(t, "id")
			grants = append(grants, grant{start: 1<<12 + id<<width, bitSeq: width, end: rapid.Int64Range(0, 9).Draw(t, "end")})
		}
		all, next := r.freeIn(1, grants, 4)
		var want []free
		first := int64(0)
		low, end := r.in(1)
		for id := low; id < end; id++ {
			since := max(r.since, until(grants, snowflake.Slot{Start: id << bitSeq, End: (id + 1) << bitSeq}))
			if since <= 4 {
				want = append(want, free{1, id, since})
			} else if first == 0 || since < first {
				first = since
			}
		}
		if !slices.Equal(all, want) || next != first {
			t.Fatalf("free: %v, next %d; want %v, %d", all, next, want, first)
		}
	})
}
