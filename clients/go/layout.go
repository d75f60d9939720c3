package kazahana

import (
	"math"
	"time"
)

// valueBits is the number of bits for time, machine ID and sequence: all but the sign.
const valueBits = 63

// A Layout says how the 63 bits of an ID are split, and where its time begins. With it, IDs
// can be read without a daemon. The zero value is not valid; DefaultLayout is the layout of
// a daemon without configuration.
type Layout struct {
	BitTS  int // milliseconds since the epoch
	BitID  int // machine ID; its top bit is the fallback flag
	BitSeq int // sequence within a millisecond and a machine ID
	Epoch  time.Time
}

// DefaultLayout is 41/14/8 bits since 2026-01-01T00:00:00Z.
func DefaultLayout() Layout {
	return Layout{BitTS: 41, BitID: 14, BitSeq: 8, Epoch: time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)}
}

func (l Layout) lowBits() int          { return valueBits - l.BitTS }
func (l Layout) unixMS(id ID) int64    { return int64(id)>>l.lowBits() + l.Epoch.UnixMilli() }
func (l Layout) isFallback(id ID) bool { return id>>(l.lowBits()-1)&1 != 0 }

// Inspect takes an ID apart. The external ID in the result is the one without a secret.
func (l Layout) Inspect(id ID) (Inspection, error) {
	switch {
	case id < 0:
		return Inspection{}, invalid(ErrInvalidParams, "%d is not an ID: it is negative", int64(id))
	case l.BitTS < 1 || l.BitID < 1 || l.BitSeq < 0 || l.BitTS+l.BitID+l.BitSeq != valueBits:
		return Inspection{}, invalid(ErrInvalidParams,
			"layout %d/%d/%d: bit_ts and bit_id must be at least 1, bit_seq at least 0, and their sum %d", l.BitTS, l.BitID, l.BitSeq, valueBits)
	}
	own := int64(id) & (1<<(l.lowBits()-1) - 1)
	return Inspection{
		ID: id, External: ExternalCodec{}.Encode(id), Time: id.Time(l),
		MachineID: own >> l.BitSeq, Sequence: own & (1<<l.BitSeq - 1), Fallback: l.isFallback(id), Layout: l,
	}, nil
}

// Bounds returns the smallest and the largest ID that a time in [from, to) can
// have, for a range scan over a column of IDs.
func (l Layout) Bounds(from, to time.Time) (smallest, largest ID, err error) {
	if l.BitTS < 1 || l.BitTS >= valueBits {
		return 0, 0, invalid(ErrInvalidParams, "bit_ts is %d, and must be 1 to %d", l.BitTS, valueBits-1)
	}
	begin := l.Epoch.UnixMilli()
	end := begin + 1<<l.BitTS - 1
	if end < begin {
		end = math.MaxInt64
	}
	// Both ends round down, so that IDs of a millisecond that begins before from are not
	// left out.
	first, last := max(from.UnixMilli(), begin), min(to.Add(-1).UnixMilli(), end)
	if !to.After(from) || first > last {
		return 0, 0, invalid(ErrInvalidParams, "the interval from %s to %s holds no ID: the second time must be later, and this layout's time runs from %s to %s",
			formatTime(from), formatTime(to), formatTime(l.Epoch), formatTime(time.UnixMilli(end)))
	}
	return ID(first-begin) << l.lowBits(), ID(last-begin+1)<<l.lowBits() - 1, nil
}

func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// An Inspection is the content of an ID.
type Inspection struct {
	ID        ID
	External  string // the external ID
	Time      time.Time
	MachineID int64
	Sequence  int64
	Fallback  bool // made without a valid lease
	Layout    Layout
}
