package snowflake

import (
	"fmt"
	"strings"
)

// Kinds of IDs, as Inspection.Kind spells them.
const (
	KindRegular  = "regular"
	KindFallback = "fallback"
)

// Inspection is the content of an ID for a given layout and epoch, which the ID itself
// does not contain.
type Inspection struct {
	ID          ID     `json:"id"`
	External    string `json:"external"`
	TimestampMS int64  `json:"timestamp_ms"` // Unix ms
	Time        string `json:"time"`         // RFC 3339, UTC
	MachineID   int64  `json:"machine_id"`   // without the fallback flag
	Sequence    int64  `json:"sequence"`
	Kind        string `json:"kind"`
	BitID       int    `json:"bit_id"`
	BitSeq      int    `json:"bit_seq"`
	EpochMS     int64  `json:"epoch_ms"` // Unix ms
}

// Inspect takes the ID apart. The machine ID and the sequence of a fallback ID are those
// of a cached lease, or random: the ID does not show which.
func Inspect(id ID, layout Layout, epochMS int64, codec Codec) (Inspection, error) {
	if id < 0 {
		return Inspection{}, fmt.Errorf("%d is not an ID: its reserve bit is set (as unsigned: %d)", int64(id), uint64(id))
	}
	if err := layout.Validate(); err != nil {
		return Inspection{}, err
	}
	tl := Timeline{EpochMS: epochMS, BitTS: layout.BitTS}
	kind := KindRegular
	if tl.IsFallback(id) {
		kind = KindFallback
	}
	own := tl.Low(id) &^ tl.FallbackBit()
	return Inspection{
		ID: id, External: codec.Encode(id),
		TimestampMS: tl.UnixMS(id), Time: FormatMS(tl.UnixMS(id)),
		MachineID: own >> layout.BitSeq, Sequence: own & (layout.Throughput() - 1),
		Kind: kind, BitID: layout.BitID, BitSeq: layout.BitSeq, EpochMS: epochMS,
	}, nil
}

// Layout is the layout by which the ID was taken apart.
func (in Inspection) Layout() Layout {
	return Layout{BitTS: ValueBits - in.BitID - in.BitSeq, BitID: in.BitID, BitSeq: in.BitSeq}
}

// Picture draws the ID's bits and their meaning in lines of plain text.
func (in Inspection) Picture() string {
	bits := fmt.Sprintf("%064b", uint64(in.ID))
	layout := in.Layout()
	fields := []struct{ bits, name, value string }{
		{bits[:1], "reserve", ""},
		{bits[1 : 1+layout.BitTS], "timestamp", fmt.Sprintf("%d ms", in.TimestampMS-in.EpochMS)},
		{bits[1+layout.BitTS : 2+layout.BitTS], "kind", in.Kind},
		{bits[2+layout.BitTS : 64-layout.BitSeq], "machine ID", fmt.Sprint(in.MachineID)},
		{bits[64-layout.BitSeq:], "sequence", fmt.Sprint(in.Sequence)},
	}
	var line strings.Builder
	var rows []string
	for _, f := range fields {
		if f.bits == "" {
			continue
		}
		if line.Len() > 0 {
			line.WriteByte(' ')
		}
		rows = append(rows, strings.TrimRight(fmt.Sprintf("%s└ %s %s", strings.Repeat(" ", line.Len()), f.name, f.value), " "))
		line.WriteString(f.bits)
	}
	// The rightmost field's row comes first, so that no stem crosses a text.
	out := []string{line.String()}
	for i := len(rows) - 1; i >= 0; i-- {
		row := []rune(rows[i])
		for j := range i {
			row[strings.IndexRune(rows[j], '└')] = '│'
		}
		out = append(out, string(row))
	}
	return strings.Join(out, "\n")
}
