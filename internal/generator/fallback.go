package generator

import (
	"math"

	"github.com/kazahana/kazahana/internal/lease"
)

// Fallback says which IDs may be made without a valid lease.
type Fallback string

// The fallback policies.
const (
	FallbackCachedRandom Fallback = "cached+random" // the last lease's slot, else random low bits
	FallbackCached       Fallback = "cached"        // the last lease's slot, while no other client can hold it
	FallbackNone         Fallback = "none"
)

// addFallback has the slot of the lease serve for fallback. No ID made from it
// embeds a time before the lease.
func (c *Core) addFallback(l lease.Lease) {
	c.reserved.add(l.Slot(), l.Created, l.ReservedUntil)
	c.uncertain.add(l.Slot(), l.Created, math.MaxInt64)
}

// fallback makes IDs without a valid lease: top low bit 1 (seed 2.3).
func (c *Core) fallback(ms, now, from, want int64, fresh bool) (Range, Stop) {
	if supply, kind := c.cachedAt(ms); supply != nil {
		if at, ok := c.startIn(supply, kind, c.tl.FallbackBit(), ms, from, want, fresh); ok {
			return c.cut(ms, at, want), Stop{}
		}
		return Range{}, c.exhausted(ms, now)
	}
	if c.cfg.Fallback == FallbackCached {
		return Range{}, Stop{Err: c.refusal()}
	}
	if fresh {
		c.open(ms, 1, want)
	}
	at, ok := c.randomLow(from, want)
	if !ok {
		return Range{}, c.exhausted(ms, now)
	}
	c.begin(at, at+1, FallbackRandomID)
	return c.cut(ms, at, want), Stop{}
}

// randomLow chooses the low bits of a random fallback ID at or above from.
//
// Within a millisecond the values must ascend, and taken together they should
// look like a uniform sample, since that is what makes a meeting with another
// host's values unlikely. If k more values are expected, the next one is drawn
// as the smallest of k uniform draws from the rest.
func (c *Core) randomLow(from, want int64) (int64, bool) {
	room := c.tl.MaxLow() + 1 - from
	if room <= 0 {
		return 0, false
	}
	k := min(max(c.recent-c.used, want, 1), c.cfg.MaxThroughput)
	smallest := 1 - math.Pow(c.rnd.Float64(), 1/float64(k))
	return from + min(int64(smallest*float64(room)), room-1), true
}

// cachedAt is what serves for cached fallback at ms, or nil, and the kind of the
// IDs. Slots that are reserved come first; where certainty is asked for, no
// others do.
func (c *Core) cachedAt(ms int64) (*supply, Kind) {
	if c.reserved.roomAt(ms) > 0 {
		return &c.reserved, FallbackCachedID
	}
	if c.cfg.Fallback != FallbackCached && c.uncertain.roomAt(ms) > 0 {
		return &c.uncertain, FallbackCachedUncertainID
	}
	return nil, 0
}

// refusal is the error where no ID is allowed.
func (c *Core) refusal() error {
	if c.cfg.Standalone {
		return ErrNoProvider
	}
	return &LeaseAcquisitionError{Cause: c.cause}
}

// Mode says which IDs would be made at the time now.
type Mode string

// The modes.
const (
	ModeStarting          Mode = "starting"                  // the first lease is waited for
	ModeRegular           Mode = "regular"                   //
	ModeFallbackCached    Mode = "fallback_cached"           //
	ModeFallbackUncertain Mode = "fallback_cached_uncertain" // cached, and another holder may make the same IDs
	ModeFallbackRandom    Mode = "fallback_random"           //
	ModeUnavailable       Mode = "unavailable"               // none: every request fails
)

// Mode returns what a request for one ID would get at the time now, and why
// it would fail.
func (c *Core) Mode(now int64) (Mode, error) {
	ms, stop := c.timestamp(now)
	if stop.Err != nil {
		return ModeUnavailable, stop.Err
	}
	if stop.Wait != WaitNone {
		ms = stop.UntilMS
	}
	switch {
	case c.regular.roomAt(ms) > 0:
		return ModeRegular, nil
	case c.starting:
		return ModeStarting, nil
	case c.cfg.Fallback == FallbackNone:
		return ModeUnavailable, c.refusal()
	}
	switch supply, kind := c.cachedAt(ms); {
	case supply != nil && kind == FallbackCachedID:
		return ModeFallbackCached, nil
	case supply != nil:
		return ModeFallbackUncertain, nil
	case c.cfg.Fallback == FallbackCached:
		return ModeUnavailable, c.refusal()
	}
	return ModeFallbackRandom, nil
}
