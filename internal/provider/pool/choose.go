package pool

import (
	"iter"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// linePage is how many segments a choice asks for beyond the machine IDs it wants.
const linePage = 16

// Ring is the machine IDs that some terms grant from. Each ring has a cursor. A
// new ring begins at random where several stores might be in use side by side,
// unknown to each other, or a store may have been set up in place of a lost one:
// it shall not begin with the machine IDs that are most likely held.
type Ring struct {
	BitSeq int
	IDs    provider.IDRange
}

// RingOf is the ring that the terms grant from.
func RingOf(t provider.Terms) Ring { return Ring{t.BitSeq, t.Range()} }

// Key is the key of one of its machine IDs.
func (r Ring) Key(machineID int64) Key { return Key{machineID << r.BitSeq, r.BitSeq} }

// span is the low bits of some of its machine IDs.
func (r Ring) span(ids provider.IDRange) snowflake.Slot {
	return snowflake.Slot{Start: ids.Low << r.BitSeq, End: ids.End << r.BitSeq}
}

// cursor is the store's, or a new one.
func (r Ring) cursor(line Reader, m Moment) (int64, error) {
	at, known, err := line.Cursor(r)
	if err == nil && (!known || !r.IDs.Contains(at)) {
		at = r.NewCursor(m.Random)
	}
	return at, err
}

// NewCursor is where a ring begins.
func (r Ring) NewCursor(random func(n int64) int64) int64 { return r.IDs.Low + random(r.IDs.Count()) }

// Choose returns up to n machine IDs of the ring that can be granted now, in the
// order of the package's comment: the longest free first, and round-robin among equals.
// Where there is none, nextMS is when the first one can be granted.
func (r Ring) Choose(line LineReader, cursor int64, n int, nowMS int64) (ids []int64, nextMS int64, err error) {
	after := start
	for {
		group, err := r.group(line, after, n+linePage)
		if err != nil || group == nil || group.freeAt > nowMS && len(ids) > 0 {
			return ids, 0, err
		}
		want := n - len(ids)
		if group.freeAt > nowMS {
			want = 1 // to learn when it is free
		}
		var chosen []int64
		for _, part := range r.Parts(cursor) {
			for id, err := range group.ids(part) {
				if err != nil {
					return nil, 0, err
				}
				if chosen = append(chosen, id); len(chosen) == want {
					break
				}
			}
			if len(chosen) == want {
				break
			}
		}
		if group.freeAt > nowMS && len(chosen) > 0 {
			return nil, group.freeAt, nil
		}
		ids = append(ids, chosen...)
		if len(ids) == n {
			return ids, 0, nil
		}
		if len(ids) > 0 {
			cursor = ids[len(ids)-1]
		}
		after = Place{group.freeAt, maxLow}
	}
}

const maxLow = 1<<63 - 1

// Parts is the ring from the cursor on, as one or two ascending stretches.
func (r Ring) Parts(cursor int64) []provider.IDRange {
	if cursor >= r.IDs.End-1 {
		return []provider.IDRange{r.IDs}
	}
	return []provider.IDRange{{Low: cursor + 1, End: r.IDs.End}, {Low: r.IDs.Low, End: cursor + 1}}
}

// group is the segments of a ring that are free since the same time.
type group struct {
	ring   Ring
	line   LineReader
	freeAt int64
	page   []Segment // those that were read
	whole  bool      // they are all
	limit  int
}

// group is the first one after the place, nil if there is none.
func (r Ring) group(line LineReader, after Place, limit int) (*group, error) {
	page, err := line.Next(r.span(r.IDs), after, limit)
	if err != nil || len(page) == 0 {
		return nil, err
	}
	g := &group{ring: r, line: line, freeAt: page[0].FreeAt, page: page, whole: len(page) < limit, limit: limit}
	for i, s := range page {
		if s.FreeAt != g.freeAt {
			g.page, g.whole = page[:i], true
			break
		}
	}
	return g, nil
}

// segments yields those that overlap the span, in ascending order.
func (g *group) segments(span snowflake.Slot) iter.Seq2[Segment, error] {
	return func(yield func(Segment, error) bool) {
		page, after := g.page, Place{g.freeAt, -1}
		for {
			if !g.whole {
				var err error
				if page, err = g.line.Next(span, after, g.limit); err != nil {
					yield(Segment{}, err)
					return
				}
			}
			for _, s := range page {
				if s.FreeAt != g.freeAt {
					return
				}
				if s.span().Overlaps(span) && !yield(s, nil) {
					return
				}
				after = s.Place()
			}
			if g.whole || len(page) < g.limit {
				return
			}
		}
	}
}

// ids yields the machine IDs in the range that are free since the group's time, in
// ascending order.
func (g *group) ids(within provider.IDRange) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		next := within.Low // all before it have been looked at
		for s, err := range g.segments(g.ring.span(within)) {
			if err != nil {
				yield(0, err)
				return
			}
			last := min((s.End-1)>>g.ring.BitSeq, within.End-1)
			for id := max(s.Low>>g.ring.BitSeq, next); id <= last; id++ {
				free, err := g.isLast(s, g.ring.Key(id).Slot())
				if (free || err != nil) && !yield(id, err) {
					return
				}
			}
			next = max(next, last+1)
		}
	}
}

// isLast reports whether nothing under the slot is free later than the segment.
func (g *group) isLast(s Segment, slot snowflake.Slot) (bool, error) {
	if s.Low <= slot.Start && slot.End <= s.End {
		return true, nil
	}
	later, err := g.line.Over(slot, g.freeAt)
	return len(later) == 0, err
}
