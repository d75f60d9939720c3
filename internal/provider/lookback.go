package provider

import (
	"slices"
	"time"
)

// leastStep is what LookBack goes back by at least.
const leastStep = time.Second

// LookBack finds the grants that a fallback ID of the time may have been made
// from: the grants that were valid then or, of those before, the last. A lease that
// was handed back is none, as it is not kept for fallback. It looks at most steps
// times, in steps of half the term, since an interval is a term long at least.
func LookBack(atMS int64, term time.Duration, steps int, locate func(atMS int64) ([]Record, error)) ([]Record, error) {
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
