package pool

import (
	"slices"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Pool is what a store has recorded of a pool as a whole. The zero value is a pool
// that does not exist yet.
type Pool struct {
	Exists   bool
	Timeline snowflake.Timeline
	Levels   []int // every bit_seq that has records
}

// known reports, as an error, that the pool has another timeline than the terms.
func (p Pool) known(t provider.Terms) error {
	if p.Exists && p.Timeline != t.Timeline {
		return provider.TimelineError(t.Pool, p.Timeline, t.Timeline)
	}
	return nil
}

// Reader is one pool of a store, within one atomic step. No method is called more
// often than its comment says, so that a store can ask for a whole step at once.
type Reader interface {
	// Pool is called first, and once.
	Pool() (Pool, error)

	// Answered returns the grants that answered the request: for each the record
	// of its slot, or nil where the slot has been granted again since. It is empty
	// where the request was not answered before. Acquire calls it once, for
	// requests with an ID.
	Answered(service, request string) ([]*Record, error)

	// Cursor is the machine ID that was assigned last in the ring; false where none
	// was. Acquire calls it once.
	Cursor(ring Ring) (machineID int64, known bool, err error)

	// Records returns the record of each key, nil where there is none. Release and
	// Verify call it once, Verify with all claims.
	Records(keys []Key) ([]*Record, error)

	// Taken returns, for each key, its record and the greatest end of the other
	// records whose slots overlap. Acquire calls it once with all slots that it
	// has chosen, Extend once with one.
	Taken(levels []int, keys []Key) ([]Taken, error)

	// History returns the grants of the slots that are remembered. It may leave
	// out those that were not valid at that time. Locate calls it once.
	History(keys []Key, atMS int64) ([]Record, error)

	LineReader
}

// Taken is what the records say of a slot.
type Taken struct {
	Own    *Record // nil where the slot was never granted
	Others int64   // the greatest end of the others that overlap; 0 where none does
}

// until is when the slot can be granted.
func (t Taken) until() int64 {
	if t.Own == nil {
		return t.Others
	}
	return max(t.Own.End, t.Others)
}

// LineReader looks at a pool's line.
type LineReader interface {
	// Next returns segments that overlap the span, in the order of Place.Compare,
	// from after the place on, and at most limit. The first call for a choice has
	// the zero place. Where a pool has one layout and fewer slots than a page are
	// free since the same millisecond, there is no second call.
	Next(span snowflake.Slot, after Place, limit int) ([]Segment, error)

	// Over returns all segments that overlap the span in ascending order, of those
	// that are free later than freeAfter: with -1 all of them.
	Over(span snowflake.Slot, freeAfter int64) ([]Segment, error)
}

// Moment is when a rule is carried out, and on whose word.
type Moment struct {
	NowMS int64 // the store's time
	// Fence is the refusal of a store that may have forgotten grants, nil while it
	// is not held back.
	Fence *provider.FencedError
	// Random is a number from 0 to n-1; see Ring.
	Random func(n int64) int64
}

// Change is what a rule has the store write.
type Change struct {
	// Create records the pool, with this timeline.
	Create *snowflake.Timeline
	// Levels is all bit_seqs that have records, where the change adds one.
	Levels []int
	// Grants replace the records of their slots, and are remembered in the
	// history and for their request.
	Grants []Record
	// Ended are records whose Expired, ReservedUntil, End or Released has changed.
	Ended []Record
	// Cursor is the ring's new cursor.
	Cursor *Cursor
	// Erase removes the segments of the line that begin in these spans, and Paint
	// then puts segments in the place of those that begin where they do, if any.
	Erase []snowflake.Slot
	Paint []Segment
}

// Cursor is the machine ID that was assigned last in a ring.
type Cursor struct {
	Ring      Ring
	MachineID int64
}

// withLevel is the levels and the bit_seq, nil if it is among them.
func withLevel(levels []int, bitSeq int) []int {
	if slices.Contains(levels, bitSeq) {
		return nil
	}
	all := append(slices.Clone(levels), bitSeq)
	slices.Sort(all)
	return all
}
