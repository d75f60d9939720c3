package sequence

import (
	"fmt"
	"math"
	"time"
)

// Limits of what can be asked for.
const (
	// MaxCount is the most values of one call, as for IDs.
	MaxCount = 65_536
	// MinTTL and MaxTTL bound how long an unused key is remembered.
	MinTTL = time.Second
	MaxTTL = 366 * 24 * time.Hour
)

// OnMax is what happens where the next values would be greater than Max.
type OnMax string

// The choices for OnMax.
const (
	Reset OnMax = "reset" // start over with the first value, as in seed 003
	Fail  OnMax = "error" // hand out nothing more: ExhaustedError
)

// Options are how a key counts. All callers of a key must have the same, apart
// from Block; the first call records them.
type Options struct {
	// Step is the distance of one value to the next, 1 to 2^63-1.
	Step int64
	// Start is the first value, 0 to 2^63-1, where StartSet; else it is Step, as
	// if one step had been counted from 0.
	Start    int64
	StartSet bool
	// Max is the greatest value that may be handed out; 0 means 2^63-1, beyond
	// which a key never starts over but fails.
	Max   int64
	OnMax OnMax
	// TTL is how long an unused key is remembered, in whole milliseconds, MinTTL to
	// MaxTTL; then it starts over. 0 means for ever.
	TTL time.Duration
	// Block is how many values a host takes at a time, to hand them out by
	// itself; see Blocks. 0 and 1 mean as many as are asked for.
	Block int
}

// DefaultOptions count 1, 2, 3, ... without end.
func DefaultOptions() Options { return Options{Step: 1, OnMax: Reset} }

// First is the value that the key begins with.
func (o Options) First() int64 {
	if o.StartSet {
		return o.Start
	}
	return o.Step
}

// Limit is the greatest value that may be handed out.
func (o Options) Limit() int64 {
	if o.Max == 0 {
		return math.MaxInt64
	}
	return o.Max
}

// Validate says what makes the options impossible, under the names that they
// have in the configuration. The error wraps ErrInvalid.
func (o Options) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
	}
	switch {
	case o.Step < 1:
		return bad("step: %d is not 1 or more", o.Step)
	case o.StartSet && o.Start < 0:
		return bad("start: %d is not 0 or more", o.Start)
	case o.Max < 0:
		return bad("max_value: %d is not 0, for none, or more", o.Max)
	case o.First() > o.Limit():
		return bad("max_value: %d is less than the first value, which is %d", o.Max, o.First())
	case o.OnMax != Reset && o.OnMax != Fail:
		return bad("on_max: %q is neither %s nor %s", string(o.OnMax), Reset, Fail)
	case o.TTL != 0 && (o.TTL < MinTTL || o.TTL > MaxTTL || o.TTL%time.Millisecond != 0):
		return bad("ttl: %v is not 0, for ever, or %v to %v in whole milliseconds", o.TTL, MinTTL, MaxTTL)
	case o.Block < 0 || o.Block > MaxCount:
		return bad("block: %d is not 0 to %d", o.Block, MaxCount)
	case o.Block > 1 && !o.fits(o.Block):
		return bad("block: %d values do not fit between the first value, %d, and max_value, %d", o.Block, o.First(), o.Limit())
	}
	return nil
}

// fits reports whether that many values fit before the limit when the key
// starts over.
func (o Options) fits(count int) bool {
	return int64(count-1) <= (o.Limit()-o.First())/o.Step
}

// ttlMS is the TTL in milliseconds.
func (o Options) ttlMS() int64 { return o.TTL.Milliseconds() }

// Text is the part of the options that a key is made with.
func (o Options) Text() string {
	return fmt.Sprintf("step=%d start=%d max_value=%d on_max=%s ttl_ms=%d", o.Step, o.First(), o.Max, o.OnMax, o.ttlMS())
}

// recorded is the part of the options that a key is made with, in one form, so that
// equal options are equal.
func (o Options) recorded() Options {
	o.Start, o.StartSet, o.Block = o.First(), true, 0
	return o
}

// same reports whether a key that is made with these options counts as with the others.
func (o Options) same(other Options) bool { return o.recorded() == other.recorded() }
