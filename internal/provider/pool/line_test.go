package pool

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// randomMarks is records of slots in all sizes up to 2^(bits-1).
func randomMarks(random *rand.Rand, bits, n int) []Mark {
	seen := map[Key]bool{}
	var marks []Mark
	for range n {
		level := random.IntN(bits)
		key := covering(random.Int64N(1<<bits), level)
		if !seen[key] {
			seen[key] = true
			marks = append(marks, Mark{Key: key, End: random.Int64N(8)})
		}
	}
	slices.SortFunc(marks, func(a, b Mark) int { return a.Key.Compare(b.Key) })
	return marks
}

// naiveEnd looks through all records.
func naiveEnd(marks []Mark, s snowflake.Slot) (end int64) {
	for _, m := range marks {
		if m.Slot().Overlaps(s) {
			end = max(end, m.End)
		}
	}
	return end
}

func checkLine(t *testing.T, whole Segment, l *Line, marks []Mark) {
	t.Helper()
	next := whole.Low
	for _, s := range l.Segments() {
		if s.Low != next || s.End <= s.Low {
			t.Fatalf("the segment %+v does not follow %d", s, next-1)
		}
		for ; next < s.End; next++ {
			if want := naiveEnd(marks, snowflake.Slot{Start: next, End: next + 1}); want != s.FreeAt {
				t.Fatalf("%v: %d is free at %d, want %d", marks, next, s.FreeAt, want)
			}
		}
	}
	if next != whole.End {
		t.Fatalf("the line ends at %d, want %d", next, whole.End)
	}
	if len(l.byPlace) != len(l.byLow) || !slices.IsSortedFunc(l.byPlace, comparePlaces) {
		t.Fatalf("the order of the line is %v", l.byPlace)
	}
}

func TestLineAgreesWithRecords(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		marks := randomMarks(random, 8, random.IntN(40))
		low := random.Int64N(256)
		whole := Segment{Low: low, End: low + 1 + random.Int64N(256-low), BitSeq: Never}
		line := NewLine(whole, marks)
		checkLine(t, whole, line, marks)

		// One record changes, and the line under it is made anew.
		whole = Segment{End: 256, BitSeq: Never}
		line = NewLine(whole, marks)
		if len(marks) == 0 {
			continue
		}
		changed := &marks[random.IntN(len(marks))]
		changed.End = random.Int64N(8)
		line.Renew(changed.Slot(), slices.DeleteFunc(slices.Clone(marks), func(m Mark) bool { return !m.Slot().Overlaps(changed.Slot()) }))
		checkLine(t, whole, line, marks)
	}
}

// naiveOrder takes the least (end, distance) n times, as the package's comment says.
func naiveOrder(marks []Mark, r Ring, cursor, now int64, n int) (ids []int64, nextMS int64) {
	taken := map[int64]bool{}
	for len(ids) < n {
		best, bestEnd := int64(-1), int64(0)
		for step := int64(1); step <= r.IDs.Count(); step++ {
			id := r.IDs.Low + (cursor-r.IDs.Low+step)%r.IDs.Count()
			if end := naiveEnd(marks, r.Key(id).Slot()); !taken[id] && (best < 0 || end < bestEnd) {
				best, bestEnd = id, end
			}
		}
		if best < 0 || bestEnd > now {
			if len(ids) == 0 {
				nextMS = bestEnd
			}
			return ids, nextMS
		}
		taken[best], cursor = true, best
		ids = append(ids, best)
	}
	return ids, 0
}

// Seeds 000-6.2-2 and 001-11.
func TestOrderIsLeastEndThenRoundRobin(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 4000 {
		marks := randomMarks(random, 7, random.IntN(60))
		r := Ring{BitSeq: random.IntN(4)}
		r.IDs.Low = random.Int64N(1 << (7 - r.BitSeq))
		r.IDs.End = r.IDs.Low + 1 + random.Int64N(1<<(7-r.BitSeq)-r.IDs.Low)
		cursor := r.IDs.Low + random.Int64N(r.IDs.Count())
		now, n := random.Int64N(9), 1+random.IntN(12)
		line := NewLine(Segment{End: 128, BitSeq: Never}, marks)
		got, nextMS, err := r.Choose(line, cursor, n, now)
		want, wantMS := naiveOrder(marks, r, cursor, now, n)
		if err != nil || !slices.Equal(got, want) || nextMS != wantMS {
			t.Fatalf("%v\nring %+v from %d at %d: %v, %d, want %v, %d", marks, r, cursor, now, got, nextMS, want, wantMS)
		}
	}
}

// Many slots are free since the same time: more than a page.
// Seed 001-16.
func TestOrderAmongManyEquals(t *testing.T) {
	ring.WithoutRace(t)
	const slots = 300
	var marks []Mark
	for id := range int64(slots) {
		marks = append(marks, Mark{Key: Key{id << 2, 2}, End: 5})
	}
	r := Ring{BitSeq: 2, IDs: provider.IDRange{Low: 10, End: slots}}
	line := NewLine(Segment{End: 2048, BitSeq: Never}, marks)
	for _, cursor := range []int64{10, 11, 150, 297, 298, 299} {
		for _, n := range []int{1, 2, 40, 290, 400} {
			got, _, err := r.Choose(line, cursor, n, 5)
			if want, _ := naiveOrder(marks, r, cursor, 5, n); err != nil || !slices.Equal(got, want) {
				t.Errorf("%d from %d: %v, want %v", n, cursor, got, want)
			}
		}
	}
}
