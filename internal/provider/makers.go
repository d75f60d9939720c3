package provider

import (
	"cmp"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
)

const (
	// makerSteps is how many times the history is asked for the holder behind a fallback ID:
	// with terms of ten minutes, four hours back.
	makerSteps = 48
	// leastStep is what lookBack goes back by at least.
	leastStep = time.Second
)

// Makers finds who can have made an ID, in a history that keeps what kept says. locate finds the
// holders of the ID's slot at a time, and term is that of the pool. The note says what is not certain.
func Makers(in snowflake.Inspection, term time.Duration, kept string, nowMS int64, locate func(atMS int64) ([]Record, error)) (found []Record, note string, err error) {
	if in.Kind == snowflake.KindFallback {
		note = "no lease stands behind a fallback ID; no holder is known who could have cached one for it, so machine ID and sequence are random, or the history is too short"
		if found, err = lookBack(in.TimestampMS, term, makerSteps, locate); len(found) > 0 {
			note = "no lease stands behind a fallback ID; if it is a cached one, this is the holder of its slot; if its bits are random, this holder has nothing to do with it"
		}
		return found, note, err
	}
	found, err = locate(in.TimestampMS)
	switch {
	case len(found) == 0 && in.TimestampMS > nowMS:
		note = "nobody: its time is still to come"
	case len(found) == 0:
		note = "nobody known: the history keeps " + cmp.Or(kept, "grants as long as its server's provider does")
	case len(found) > 1:
		note = "several grants: nobody coordinates them"
	}
	return found, note, err
}

// lookBack finds the grants that a fallback ID of the time may have been made
// from: the grants that were valid then or, of those before, the last. A lease that
// was handed back is none, as it is not kept for fallback. It looks at most steps
// times, in steps of half the term, since an interval is a term long at least.
func lookBack(atMS int64, term time.Duration, steps int, locate func(atMS int64) ([]Record, error)) ([]Record, error) {
	step := max(term/2, leastStep).Milliseconds()
	found, err := locate(atMS)
	for back := int64(1); err == nil && len(found) == 0 && back <= int64(steps); back++ {
		found, err = locate(atMS - back*step)
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found, func(r Record) bool { return r.Released && r.End <= atMS }), nil
}
