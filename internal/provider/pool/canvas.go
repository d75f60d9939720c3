package pool

import (
	"slices"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// canvas is a line on which a rule paints. It remembers what it has read, and what
// the store has to write.
type canvas struct {
	line   LineReader
	before map[int64]Segment // those that were read, by Low
	now    []Segment         // in ascending order, with gaps where nothing was read
	erase  []snowflake.Slot
}

func newCanvas(line LineReader) *canvas { return &canvas{line: line, before: map[int64]Segment{}} }

// newLine is the canvas of a pool that does not exist yet.
func newLine(whole Segment) *canvas {
	c := newCanvas(NewLine(whole, nil))
	c.now = []Segment{whole}
	return c
}

// Next implements LineReader, before anything is painted.
func (c *canvas) Next(span snowflake.Slot, after Place, limit int) ([]Segment, error) {
	page, err := c.line.Next(span, after, limit)
	c.add(page)
	return page, err
}

// Over implements LineReader, before anything is painted.
func (c *canvas) Over(span snowflake.Slot, freeAfter int64) ([]Segment, error) {
	all, err := c.line.Over(span, freeAfter)
	c.add(all)
	return all, err
}

func (c *canvas) add(segments []Segment) {
	for _, s := range segments {
		i := from(c.now, s.Low)
		if i == len(c.now) || c.now[i].Low >= s.End { // not read before
			c.before[s.Low] = s
			c.now = slices.Insert(c.now, i, s)
		}
	}
}

// under returns the positions of the segments that overlap the span, and reads
// them where that was not done.
func (c *canvas) under(span snowflake.Slot) (first, last int, err error) {
	find := func() (gap bool) {
		first = from(c.now, span.Start)
		next := span.Start
		for last = first; last < len(c.now) && c.now[last].Low < span.End; last++ {
			gap = gap || c.now[last].Low > next
			next = c.now[last].End
		}
		return gap || next < span.End
	}
	if find() {
		if _, err = c.Over(span, -1); err == nil && find() {
			err = ErrInconsistent // there are no gaps in a line
		}
	}
	return first, last, err
}

// grant paints the slot over what was there.
func (c *canvas) grant(k Key, freeAt int64) error {
	span := k.Slot()
	first, last, err := c.under(span)
	if err != nil {
		return err
	}
	parts := []Segment{{Low: span.Start, End: span.End, FreeAt: freeAt, BitSeq: k.BitSeq}}
	if left := c.now[first]; left.Low < span.Start {
		left.End = span.Start
		parts = slices.Insert(parts, 0, left)
	}
	right := c.now[last-1]
	if right.Low > span.Start {
		c.erase = append(c.erase, snowflake.Slot{Start: span.Start + 1, End: span.End})
	}
	if right.End > span.End {
		right.Low = span.End
		parts = append(parts, right)
	}
	c.now = slices.Replace(c.now, first, last, parts...)
	return nil
}

// move gives the part of the line that belongs to the record another end.
func (c *canvas) move(k Key, freeAt int64) error {
	first, last, err := c.under(k.Slot())
	if err != nil {
		return err
	}
	for i := range c.now[first:last] {
		if s := &c.now[first+i]; s.of(k) {
			s.FreeAt = freeAt
		}
	}
	return nil
}

// changes is what the store has to write.
func (c *canvas) changes() (erase []snowflake.Slot, paint []Segment) {
	for _, s := range c.now {
		if before, ok := c.before[s.Low]; !ok || before != s {
			paint = append(paint, s)
		}
	}
	return c.erase, paint
}
