package pool

import (
	"cmp"
	"slices"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// Segment is low bits that can be granted from the same time on.
type Segment struct {
	Low, End int64 // [Low, End) of the line
	FreeAt   int64 // Unix ms; 0 where nothing was ever granted
	// BitSeq is that of the record which the segment belongs to: the one of the slot
	// that covers it. It is Never where there is none.
	BitSeq int
}

// Never is the BitSeq of a segment that was never granted.
const Never = -1

// Place is where a segment is in the order of who is free for longest.
type Place struct{ FreeAt, Low int64 }

// Compare orders places.
func (p Place) Compare(other Place) int {
	return cmp.Or(cmp.Compare(p.FreeAt, other.FreeAt), cmp.Compare(p.Low, other.Low))
}

// start is before every place.
var start = Place{-1, -1}

// Place is the segment's.
func (s Segment) Place() Place { return Place{s.FreeAt, s.Low} }

func (s Segment) span() snowflake.Slot { return snowflake.Slot{Start: s.Low, End: s.End} }

// of reports whether the segment belongs to the record.
func (s Segment) of(k Key) bool { return s.BitSeq == k.BitSeq && covering(s.Low, s.BitSeq) == k }

// EmptyLine is the line of a pool that was never granted from.
func EmptyLine(timeline snowflake.Timeline) Segment {
	return Segment{Low: 0, End: timeline.FallbackBit(), BitSeq: Never}
}

// Mark is as much of a record as its line needs.
type Mark struct {
	Key
	Created, End int64
}

// Line is a line in memory. Its segments lie one beside the other, without a gap.
type Line struct {
	byLow   []Segment
	byPlace []Segment // the same
}

// NewLine makes the line of a pool, or a part of it, from the records, which are in
// the order of Key.Compare. whole is what the line would be without them; records
// outside it do not count.
//
// Slots are nested or disjoint, so a stack holds those that cover the present low
// bits. A record's part of the line is what no later grant covers.
func NewLine(whole Segment, marks []Mark) *Line {
	type slot struct {
		end   int64 // of its low bits
		owner Mark
	}
	stack := []slot{{whole.End, Mark{Key: Key{BitSeq: whole.BitSeq}, Created: -1, End: whole.FreeAt}}}
	top := func() slot { return stack[len(stack)-1] }
	var line []Segment
	next := whole.Low // all before it is cut
	cut := func(to int64) {
		if to = min(to, whole.End); next < to {
			line = append(line, Segment{Low: next, End: to, FreeAt: top().owner.End, BitSeq: top().owner.BitSeq})
			next = to
		}
	}
	for _, m := range marks {
		span := m.Slot()
		if span.End <= whole.Low || span.Start >= whole.End {
			continue
		}
		for top().end <= span.Start {
			cut(top().end)
			stack = stack[:len(stack)-1]
		}
		cut(span.Start)
		if outer := top().owner; cmp.Or(cmp.Compare(m.End, outer.End), cmp.Compare(m.Created, outer.Created)) < 0 {
			m = outer // the wider one was granted later
		}
		stack = append(stack, slot{span.End, m})
	}
	for ; len(stack) > 0; stack = stack[:len(stack)-1] {
		cut(top().end)
	}
	return LineOf(line)
}

// LineOf is the line that has these segments, which are in ascending order. There
// may be gaps: nothing is chosen there.
func LineOf(segments []Segment) *Line {
	l := &Line{byLow: segments, byPlace: slices.Clone(segments)}
	slices.SortFunc(l.byPlace, comparePlaces)
	return l
}

func comparePlaces(a, b Segment) int { return a.Place().Compare(b.Place()) }

// from is the position of the first segment that ends after the low bits.
func from(segments []Segment, low int64) int {
	i, _ := slices.BinarySearchFunc(segments, low, func(s Segment, low int64) int { return cmp.Compare(s.End, low+1) })
	return i
}

// Next implements LineReader.
func (l *Line) Next(span snowflake.Slot, after Place, limit int) ([]Segment, error) {
	i, found := slices.BinarySearchFunc(l.byPlace, after, func(s Segment, p Place) int { return s.Place().Compare(p) })
	if found {
		i++
	}
	var page []Segment
	for ; i < len(l.byPlace) && len(page) < limit; i++ {
		if s := l.byPlace[i]; s.span().Overlaps(span) {
			page = append(page, s)
		}
	}
	return page, nil
}

// Over implements LineReader.
func (l *Line) Over(span snowflake.Slot, freeAfter int64) ([]Segment, error) {
	var all []Segment
	for i := from(l.byLow, span.Start); i < len(l.byLow) && l.byLow[i].Low < span.End; i++ {
		if l.byLow[i].FreeAt > freeAfter {
			all = append(all, l.byLow[i])
		}
	}
	return all, nil
}

// Apply carries out a change of the line.
func (l *Line) Apply(c Change) {
	for _, span := range c.Erase {
		first := l.position(span.Start)
		last := l.position(span.End)
		for _, s := range l.byLow[first:last] {
			l.unplace(s)
		}
		l.byLow = slices.Delete(l.byLow, first, last)
	}
	for _, s := range c.Paint {
		i := l.position(s.Low)
		if i < len(l.byLow) && l.byLow[i].Low == s.Low {
			l.unplace(l.byLow[i])
			l.byLow[i] = s
		} else {
			l.byLow = slices.Insert(l.byLow, i, s)
		}
		at, _ := slices.BinarySearchFunc(l.byPlace, s, comparePlaces)
		l.byPlace = slices.Insert(l.byPlace, at, s)
	}
}

// Renew makes the part of the line under a slot anew, from the records that overlap
// it, in the order of Key.Compare.
func (l *Line) Renew(slot snowflake.Slot, marks []Mark) {
	under, _ := l.Over(slot, -1)
	paint := NewLine(Segment{Low: slot.Start, End: slot.End, BitSeq: Never}, marks).byLow
	if len(under) > 0 {
		if left := under[0]; left.Low < slot.Start {
			left.End = slot.Start
			paint = append(paint, left)
		}
		if right := under[len(under)-1]; right.End > slot.End {
			right.Low = slot.End
			paint = append(paint, right)
		}
	}
	l.Apply(Change{Erase: []snowflake.Slot{slot}, Paint: paint})
}

// position is that of the first segment that begins at the low bits or later.
func (l *Line) position(low int64) int {
	i, _ := slices.BinarySearchFunc(l.byLow, low, func(s Segment, low int64) int { return cmp.Compare(s.Low, low) })
	return i
}

func (l *Line) unplace(s Segment) {
	if i, found := slices.BinarySearchFunc(l.byPlace, s, comparePlaces); found {
		l.byPlace = slices.Delete(l.byPlace, i, i+1)
	}
}

// Segments returns the whole line in ascending order.
func (l *Line) Segments() []Segment { return slices.Clone(l.byLow) }
