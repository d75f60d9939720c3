package generator

import (
	"math"
	"sort"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// window is a lease as the core sees it.
type window struct {
	slot             snowflake.Slot
	created, expired int64
	reserved         int64
}

func (w *window) allows(ms int64) bool { return w.created <= ms && ms < w.expired }

// usable is the values that leases hold which allow the millisecond. They are
// worked out anew only when a lease begins or ends, so that in between neither
// an ID nor a millisecond costs more where there are more leases.
type usable struct {
	// The same leases allow every Unix ms in [from, until). While the two are
	// equal, nothing has been worked out.
	from, until int64
	segments    []segment // ascending, with a gap between each and the next
	room        int64     // how many values they hold together
	hint        int       // the segment found last, as a guess: whether it helps is seen from the segment
}

// segment is adjacent values, of one slot or of several. All of them belong to
// leases that allow the same milliseconds.
type segment struct {
	start, end int64 // low bits, end exclusive
	before     int64 // how many values the segments before it hold
}

// forget says that the leases may be others from now on.
func (u *usable) forget() { u.from, u.until = 0, 0 }

// lookAt makes it the values that held, ascending by slot start, allow at ms.
func (u *usable) lookAt(ms int64, held []window) {
	if u.from <= ms && ms < u.until {
		return
	}
	u.from, u.until = math.MinInt64, math.MaxInt64
	u.segments, u.room = u.segments[:0], 0
	for i := range held {
		w := &held[i]
		for _, edge := range [...]int64{w.created, w.expired} {
			if edge <= ms {
				u.from = max(u.from, edge)
			} else {
				u.until = min(u.until, edge)
			}
		}
		if w.allows(ms) {
			u.add(w.slot)
		}
	}
}

// add joins a slot that does not begin before the last one that was added. A
// slot granted twice over, as static: renews, counts once.
func (u *usable) add(s snowflake.Slot) {
	if n := len(u.segments); n > 0 && s.Start <= u.segments[n-1].end {
		last := &u.segments[n-1]
		u.room += max(s.End-last.end, 0)
		last.end = max(last.end, s.End)
		return
	}
	u.segments = append(u.segments, segment{start: s.Start, end: s.End, before: u.room})
	u.room += s.Size()
}

// nth returns the value that has n smaller ones, and the end of its segment. n
// is less than room.
func (u *usable) nth(n int64) (at, end int64) {
	i := sort.Search(len(u.segments), func(i int) bool { return u.segments[i].before > n }) - 1
	u.hint = i
	s := u.segments[i]
	return s.start + n - s.before, s.end
}

// next returns the first value at or above from, and the end of its segment.
func (u *usable) next(from int64) (at, end int64, ok bool) {
	i := u.hint
	// Most often the last segment has just been used up.
	if i >= len(u.segments) || u.segments[i].end != from {
		i = sort.Search(len(u.segments), func(i int) bool { return u.segments[i].end > from }) - 1
	}
	i++
	if i == len(u.segments) {
		return 0, 0, false
	}
	u.hint = i
	s := u.segments[i]
	return max(s.start, from), s.end, true
}
