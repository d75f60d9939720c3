package kazahana

import (
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// A Layout says how the 63 bits of an ID are split, and where its time begins. With it, IDs
// can be read without a daemon. The zero value is not valid; DefaultLayout is the layout of
// a daemon without configuration.
type Layout struct {
	BitTS  int // milliseconds since the epoch
	BitID  int // machine ID; its top bit marks fallback IDs
	BitSeq int // sequence within a millisecond and a machine ID
	Epoch  time.Time
}

// DefaultLayout is 41/14/8 bits since 2026-01-01T00:00:00Z.
func DefaultLayout() Layout {
	return Layout{
		BitTS: snowflake.DefaultBitTS, BitID: snowflake.DefaultBitID, BitSeq: snowflake.DefaultBitSeq,
		Epoch: time.UnixMilli(snowflake.DefaultEpochMS).UTC(),
	}
}

func (l Layout) timeline() snowflake.Timeline {
	return snowflake.Timeline{EpochMS: l.Epoch.UnixMilli(), BitTS: l.BitTS}
}

// Inspect takes an ID apart. The external ID in the result is the one without a secret.
func (l Layout) Inspect(id ID) (Inspection, error) {
	in, err := snowflake.Inspect(snowflake.ID(id), snowflake.Layout{BitTS: l.BitTS, BitID: l.BitID, BitSeq: l.BitSeq},
		l.Epoch.UnixMilli(), snowflake.Codec{})
	if err != nil {
		return Inspection{}, invalid(ErrInvalidParams, "%v", err)
	}
	return inspection(in), nil
}

// Bounds returns the smallest and the largest ID that a time in [from, to) can
// have, for a range scan over a column of IDs.
func (l Layout) Bounds(from, to time.Time) (smallest, largest ID, err error) {
	if err := l.timeline().Validate(); err != nil {
		return 0, 0, invalid(ErrInvalidParams, "%v", err)
	}
	first, last, err := l.timeline().Bounds(from, to)
	if err != nil {
		return 0, 0, invalid(ErrInvalidParams, "%v", err)
	}
	return ID(first), ID(last), nil
}

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

func inspection(in snowflake.Inspection) Inspection {
	split := in.Layout()
	return Inspection{
		ID: ID(in.ID), External: in.External, Time: time.UnixMilli(in.TimestampMS).UTC(),
		MachineID: in.MachineID, Sequence: in.Sequence, Fallback: in.Kind == snowflake.KindFallback,
		Layout: Layout{BitTS: split.BitTS, BitID: split.BitID, BitSeq: split.BitSeq, Epoch: time.UnixMilli(in.EpochMS).UTC()},
	}
}

// An ExternalCodec turns IDs into external IDs of 11 characters and back, without a daemon.
// The zero value has no secret: it hides the sequence from a casual look, and anyone can
// decode its external IDs.
type ExternalCodec struct{ codec snowflake.Codec }

// NewExternalCodec returns a service's codec for its secret: the content of the
// daemon's external_secret_file without one trailing newline. The service is part of the
// key; "" means "default".
func NewExternalCodec(secret, service string) (ExternalCodec, error) {
	codec, err := snowflake.NewCodec([]byte(secret), service)
	if err != nil {
		return ExternalCodec{}, invalid(ErrInvalidParams, "%v", err)
	}
	return ExternalCodec{codec}, nil
}

// Encode returns the external ID.
func (c ExternalCodec) Encode(id ID) string { return c.codec.Encode(snowflake.ID(id)) }

// Decode returns the ID of an external ID. About half of all forged strings pass; see
// DecodeBefore. The error is ErrInvalidExternalID.
func (c ExternalCodec) Decode(external string) (ID, error) {
	id, err := c.codec.Decode(external)
	if err != nil {
		return 0, invalid(ErrInvalidExternalID, "%v", err)
	}
	return ID(id), nil
}

// DecodeBefore is Decode with the latest plausible time of an ID: now, plus some tolerance.
// It refuses almost every forged string.
func (c ExternalCodec) DecodeBefore(external string, layout Layout, latest time.Time) (ID, error) {
	id, err := c.codec.DecodeBefore(external, layout.timeline(), latest.UnixMilli())
	if err != nil {
		return 0, invalid(ErrInvalidExternalID, "%v", err)
	}
	return ID(id), nil
}
