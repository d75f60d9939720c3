package etcd

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/kazahana/kazahana/internal/provider"
)

// run is neighbouring machine IDs of one bit_seq, both bounds included, with
// the time from which each of them can be granted.
type run struct{ low, high, end int64 }

// runs calls yield for the machine IDs low to high of the bit_seq, in
// ascending order, until it returns false. marks are those of every slot that
// overlaps them, in the order of compareMarks; others are passed over.
//
// Slots are nested or disjoint, so that a stack holds those that overlap the
// present machine ID.
func runs(marks []mark, bitSeq int, low, high int64, yield func(run) bool) bool {
	open := []run{{low, high, 0}}
	next, more := low, true // all before next have been yielded
	emit := func(to int64) {
		if more && next <= to {
			more = yield(run{next, to, open[len(open)-1].end})
			next = to + 1
		}
	}
	for _, m := range marks {
		from := m.start >> bitSeq
		to := max(from, (m.start+1<<m.bitSeq-1)>>bitSeq)
		if to < low {
			continue
		}
		if from > high || !more {
			break
		}
		from, to = max(from, low), min(to, high)
		for open[len(open)-1].high < from {
			emit(open[len(open)-1].high)
			open = open[:len(open)-1]
		}
		emit(from - 1)
		open = append(open, run{from, to, max(open[len(open)-1].end, m.end)})
	}
	for len(open) > 0 {
		emit(open[len(open)-1].high)
		open = open[:len(open)-1]
	}
	return more
}

// ring is the machine IDs that a service is granted from.
type ring struct {
	bitSeq int
	ids    provider.IDRange
	cursor int64 // machine ID assigned last
}

func newRing(terms provider.Terms, cursor int64, known bool) ring {
	r := ring{bitSeq: terms.BitSeq, ids: terms.Range(), cursor: cursor}
	if !known || !r.ids.Contains(cursor) {
		// A store that was set up again in place of a lost one shall not begin
		// with the machine IDs that are most likely held.
		r.cursor = r.ids.Low + rand.Int64N(r.ids.Count())
	}
	return r
}

// parts is the ring from the cursor on, as one or two ascending stretches.
func (r ring) parts() [][2]int64 {
	low, high := r.ids.Low, r.ids.End-1
	if r.cursor >= high {
		return [][2]int64{{low, high}}
	}
	return [][2]int64{{r.cursor + 1, high}, {low, r.cursor}}
}

// search collects the free machine IDs of a ring.
type search struct {
	now  int64
	want int64 // of never granted ones this many are enough: nothing comes before them
	free []run
	// never is how many never granted ones were found, freed how many others.
	never, freed int64
	nextEnd      int64 // the least end of those that are taken
}

func newSearch(now, want int64) *search {
	return &search{now: now, want: want, nextEnd: math.MaxInt64}
}

// add takes the next run, and reports whether the search goes on.
func (s *search) add(r run) bool {
	if r.end > s.now {
		s.nextEnd = min(s.nextEnd, r.end)
		return true
	}
	s.free = append(s.free, r)
	if r.end == 0 {
		s.never += r.high - r.low + 1
	} else {
		s.freed += r.high - r.low + 1
	}
	return s.never < s.want
}

// least moves the runs with the least ends to the front, and returns as many as
// have n machine IDs at least, or all. It costs less than putting them in order.
func least(free []run, n int64) []run {
	low, high := 0, len(free)
	for low < high && n > 0 {
		pivot := free[low+rand.IntN(high-low)].end
		// free[low:below] is before the pivot, free[above:high] after it.
		below, above := low, high
		var before, like int64
		for i := low; i < above; {
			size := free[i].high - free[i].low + 1
			switch {
			case free[i].end < pivot:
				free[i], free[below] = free[below], free[i]
				before += size
				below++
				i++
			case free[i].end > pivot:
				above--
				free[i], free[above] = free[above], free[i]
			default:
				like += size
				i++
			}
		}
		if before >= n {
			high = below
			continue
		}
		n -= before + like
		low = above
	}
	if n <= 0 {
		return free[:low]
	}
	return free[:high]
}

// inOrder is the first n of the free machine IDs, by (end, distance from the
// cursor), where the cursor goes along. It leaves out those that skip
// says, at most so many.
func (s *search) inOrder(cursor int64, n, skipped int, skip func(id int64) bool) []int64 {
	free := least(s.free, int64(n+skipped))
	slices.SortFunc(free, func(a, b run) int { return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.low, b.low)) })
	var ids []int64
	take := func(low, high int64) {
		for id := low; id <= high && len(ids) < n; id++ {
			if !skip(id) {
				ids = append(ids, id)
				cursor = id
			}
		}
	}
	for rest := free; len(rest) > 0 && len(ids) < n; {
		size := 1
		for size < len(rest) && rest[size].end == rest[0].end {
			size++
		}
		equals, from := rest[:size], cursor
		rest = rest[size:]
		first, _ := slices.BinarySearchFunc(equals, from, func(r run, c int64) int {
			if r.high <= c {
				return -1
			}
			return 1
		})
		for i := first; i < size; i++ {
			take(max(equals[i].low, from+1), equals[i].high)
		}
		for i := 0; i < size && equals[i].low <= from; i++ {
			take(equals[i].low, min(equals[i].high, from))
		}
	}
	return ids
}
