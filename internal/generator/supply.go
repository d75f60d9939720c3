package generator

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// window is a slot and the Unix ms in [created, until) that it serves.
type window struct {
	slot           snowflake.Slot
	created, until int64
}

func (w *window) allows(ms int64) bool { return w.created <= ms && ms < w.until }

// supply is slots, and the values of the slots that allow the millisecond in use.
// The values are worked out anew only when a window begins or ends, so that in
// between neither an ID nor a millisecond costs more where there are more leases.
type supply struct {
	windows []window // ascending by slot start

	// The same windows allow every Unix ms in [from, until). While the two are
	// equal, nothing has been worked out.
	from, until int64
	segments    []segment // ascending, with a gap between each and the next
	room        int64     // how many values they hold together
}

func (u *supply) add(slot snowflake.Slot, created, until int64) {
	u.windows = append(u.windows, window{slot, created, until})
}

func (u *supply) sort() {
	slices.SortStableFunc(u.windows, func(a, b window) int { return cmp.Compare(a.slot.Start, b.slot.Start) })
}

// segment is adjacent values, of one slot or of several. All of them belong to
// leases that allow the same milliseconds.
type segment struct {
	start, end int64 // low bits, end exclusive
	before     int64 // how many values the segments before it hold
}

// forget says that the windows may be others from now on.
func (u *supply) forget() { u.from, u.until = 0, 0 }

// roomAt is how many values the windows that allow ms hold. nth and next then
// find them.
func (u *supply) roomAt(ms int64) int64 {
	if u.from <= ms && ms < u.until {
		return u.room
	}
	u.from, u.until = math.MinInt64, math.MaxInt64
	u.segments, u.room = u.segments[:0], 0
	for i := range u.windows {
		w := &u.windows[i]
		for _, edge := range [...]int64{w.created, w.until} {
			if edge <= ms {
				u.from = max(u.from, edge)
			} else {
				u.until = min(u.until, edge)
			}
		}
		if w.allows(ms) {
			u.join(w.slot)
		}
	}
	return u.room
}

// join adds a slot that does not begin before the last one added. A
// slot granted twice over, as static: renews, counts once.
func (u *supply) join(s snowflake.Slot) {
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
func (u *supply) nth(n int64) (at, end int64) {
	i := sort.Search(len(u.segments), func(i int) bool { return u.segments[i].before > n }) - 1
	s := u.segments[i]
	return s.start + n - s.before, s.end
}

// next returns the first value at or above from, and the end of its segment.
func (u *supply) next(from int64) (at, end int64, ok bool) {
	i := sort.Search(len(u.segments), func(i int) bool { return u.segments[i].end > from })
	if i == len(u.segments) {
		return 0, 0, false
	}
	s := u.segments[i]
	return max(s.start, from), s.end, true
}
