package snowflake

import (
	"fmt"
	"time"
)

// Bit widths and the epoch, unless a lease or the configuration sets others.
const (
	// BitReserve is the width of the sign bit. It is zero in every ID, so that a signed
	// 64-bit column sorts IDs in the order in which they were made.
	BitReserve = 1
	// ValueBits is the number of bits for time, machine ID and sequence.
	ValueBits = 64 - BitReserve

	DefaultBitTS  = 41
	DefaultBitID  = 14
	DefaultBitSeq = 8

	// DefaultEpochMS is 2026-01-01T00:00:00Z in Unix milliseconds.
	DefaultEpochMS int64 = 1_767_225_600_000
)

// The default layout fills the 63 bits exactly.
var _ = [1]struct{}{}[ValueBits-DefaultBitTS-DefaultBitID-DefaultBitSeq]

// ID is a 64-bit identifier with a top bit of zero.
//
//	 63 62                                22 21 20           8 7        0
//	┌──┬────────────────────────────────────┬──┬──────────────┬──────────┐
//	│ 0│ timestamp: ms since the epoch      │F │ machine ID   │ sequence │
//	└──┴────────────────────────────────────┴──┴──────────────┴──────────┘
//	    bit_ts (41)                          └─ bit_id (14) ─┘ bit_seq (8)
//	                                         └─ the low bits: 22 ────────┘
//
// F, the top low bit, is 0 in a regular ID and 1 in a fallback ID. The drawing shows the
// default layout; a Layout describes others.
type ID int64

// Layout is a split of an ID's 63 value bits. The zero value is not valid; see
// DefaultLayout and Layout.Validate.
type Layout struct {
	BitTS  int // milliseconds since the epoch: 1 to 62
	BitID  int // machine ID; its top bit is the fallback flag: 1 to 62
	BitSeq int // sequence within a millisecond and a machine ID: 0 to 61
}

// DefaultLayout is 41/14/8: 69 years, 8,192 machine IDs, 256 IDs per
// millisecond and machine ID.
func DefaultLayout() Layout {
	return Layout{BitTS: DefaultBitTS, BitID: DefaultBitID, BitSeq: DefaultBitSeq}
}

// Names of layouts, for flags and settings.
const (
	NameDefault = "default"
	NameJS      = "js"
)

// JSLayout is 52/7/4, for IDs that fit a JavaScript number: with 11 low bits, the IDs of
// the first 139 years are below 2^53. It has 64 machine IDs, and 16 IDs per millisecond
// and machine ID.
func JSLayout() Layout { return Layout{BitTS: 52, BitID: 7, BitSeq: 4} }

// NamedLayout returns the layout of that name.
func NamedLayout(name string) (Layout, error) {
	switch name {
	case NameDefault:
		return DefaultLayout(), nil
	case NameJS:
		return JSLayout(), nil
	}
	return Layout{}, fmt.Errorf("there is no layout %q: write %s or %s", name, NameDefault, NameJS)
}

// Validate returns an error unless the layout splits 63 bits and has room for a timestamp
// and a machine ID.
func (l Layout) Validate() error {
	switch {
	case l.BitTS < 1 || l.BitID < 1 || l.BitSeq < 0:
		return fmt.Errorf("layout %v: bit_ts and bit_id must be at least 1 and bit_seq at least 0", l)
	case l.BitTS+l.BitID+l.BitSeq != ValueBits:
		return fmt.Errorf("layout %v: bit_ts + bit_id + bit_seq is %d, and must be %d",
			l, l.BitTS+l.BitID+l.BitSeq, ValueBits)
	}
	return nil
}

// String returns the layout as bit_ts/bit_id/bit_seq, for example 41/14/8.
func (l Layout) String() string { return fmt.Sprintf("%d/%d/%d", l.BitTS, l.BitID, l.BitSeq) }

// LowBits is the number of bits below the timestamp.
func (l Layout) LowBits() int { return l.BitID + l.BitSeq }

// MachineIDs is the number of machine IDs that can be leased: half of what fits bit_id,
// because the other half belongs to fallback IDs.
func (l Layout) MachineIDs() int64 { return 1 << (l.BitID - 1) }

// Throughput is the number of IDs per millisecond and lease.
func (l Layout) Throughput() int64 { return 1 << l.BitSeq }

// Slot is the range of low bits that a lease of machineID covers.
func (l Layout) Slot(machineID int64) Slot {
	return Slot{Start: machineID << l.BitSeq, End: (machineID + 1) << l.BitSeq}
}

// Slot is a half-open range [Start, End) of low-bit values. Leases are compared by slot,
// never by machine ID: with another bit_seq the same machine ID has another range.
type Slot struct{ Start, End int64 }

// Overlaps reports whether the slots share a value.
func (s Slot) Overlaps(o Slot) bool { return s.Start < o.End && o.Start < s.End }

// Size is the number of values in the slot.
func (s Slot) Size() int64 { return s.End - s.Start }

// Timeline is the start of time and its number of bits. All IDs of a pool must have the
// same timeline to be comparable and unique.
type Timeline struct {
	EpochMS int64 `json:"epochMs"` // Unix milliseconds
	BitTS   int   `json:"bitTs"`
}

// DefaultTimeline is the timeline of DefaultLayout and DefaultEpochMS.
func DefaultTimeline() Timeline { return Timeline{EpochMS: DefaultEpochMS, BitTS: DefaultBitTS} }

// Validate returns an error if no ID can be made on the timeline.
func (tl Timeline) Validate() error {
	if tl.BitTS < 1 || tl.BitTS > ValueBits-1 {
		return fmt.Errorf("bit_ts is %d, and must be 1 to %d", tl.BitTS, ValueBits-1)
	}
	return nil
}

// LowBits is the number of bits below the timestamp.
func (tl Timeline) LowBits() int { return ValueBits - tl.BitTS }

// FallbackBit is the top low bit, which marks a fallback ID.
func (tl Timeline) FallbackBit() int64 { return 1 << (tl.LowBits() - 1) }

// MaxLow is the largest low-bit value.
func (tl Timeline) MaxLow() int64 { return 1<<tl.LowBits() - 1 }

// EndMS is the first Unix millisecond after the timeline, at most the largest int64.
func (tl Timeline) EndMS() int64 {
	span := int64(1) << tl.BitTS
	if end := tl.EpochMS + span; end > tl.EpochMS {
		return end
	}
	return 1<<63 - 1
}

// SafeEndMS is the first Unix millisecond with IDs of 2^53 or more, which a double cannot
// hold exactly. It is 0 if the first millisecond has such IDs.
func (tl Timeline) SafeEndMS() int64 {
	if tl.LowBits() > 53 {
		return 0
	}
	return min(tl.EpochMS+1<<(53-tl.LowBits()), tl.EndMS())
}

// Contains reports whether an ID can embed the Unix millisecond.
func (tl Timeline) Contains(unixMS int64) bool { return unixMS >= tl.EpochMS && unixMS < tl.EndMS() }

// ID composes an ID. It panics if the millisecond is outside the timeline or the low bits
// do not fit; callers check both.
func (tl Timeline) ID(unixMS, low int64) ID {
	if !tl.Contains(unixMS) || low < 0 || low > tl.MaxLow() {
		panic(fmt.Sprintf("snowflake: (%d ms, low %d) is outside timeline %+v", unixMS, low, tl))
	}
	return ID((unixMS-tl.EpochMS)<<tl.LowBits() | low)
}

// UnixMS is the Unix millisecond that the ID embeds.
func (tl Timeline) UnixMS(id ID) int64 { return int64(id)>>tl.LowBits() + tl.EpochMS }

// Low is the ID's low bits.
func (tl Timeline) Low(id ID) int64 { return int64(id) & tl.MaxLow() }

// IsFallback reports whether the ID was made without a valid lease.
func (tl Timeline) IsFallback(id ID) bool { return int64(id)&tl.FallbackBit() != 0 }

// Bounds returns the smallest and the largest ID of the instants in [from, to), for a
// range scan over a column of IDs. It cuts off what lies outside the timeline. An
// interval that is empty, or wholly outside, is an error.
func (tl Timeline) Bounds(from, to time.Time) (smallest, largest ID, err error) {
	// IDs embed whole milliseconds. Both ends round down, so that IDs of a millisecond
	// that begins before from are not left out.
	first, last := from.UnixMilli(), to.Add(-1).UnixMilli()
	if !to.After(from) {
		return 0, 0, fmt.Errorf("the interval from %s to %s is empty: the second time must be later",
			from.UTC().Format(time.RFC3339Nano), to.UTC().Format(time.RFC3339Nano))
	}
	first, last = max(first, tl.EpochMS), min(last, tl.EndMS()-1)
	if first > last {
		return 0, 0, fmt.Errorf("the interval from %s to %s holds no ID: this layout's time runs from %s to %s",
			from.UTC().Format(time.RFC3339Nano), to.UTC().Format(time.RFC3339Nano),
			FormatMS(tl.EpochMS), FormatMS(tl.EndMS()))
	}
	return tl.ID(first, 0), tl.ID(last, tl.MaxLow()), nil
}

// FormatMS formats a Unix millisecond as RFC 3339 in UTC, with milliseconds.
func FormatMS(unixMS int64) string {
	return time.UnixMilli(unixMS).UTC().Format("2006-01-02T15:04:05.000Z07:00")
}
