// Package trace holds what happened to a pool against docs/model/Pool.tla: every grant that
// daemons tell of, and every regular ID, must be a step that the specification allows.
//
// The order of events on several hosts is not seen, and no clock tells it. It is not needed:
// of two grants that overlap, the specification lets the later one begin no earlier than the
// first one ends (Free, Grant), so their beginnings are in the order of the grants. Unseen
// events, such as a release with a lost answer, may have happened.
package trace

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kazahana/kazahana/internal/snowflake"
)

// Grant is a lease that a daemon tells of.
type Grant struct {
	By               string // the daemon
	Slot             snowflake.Slot
	Created, Expired int64 // Unix ms, by the store's clock
	// ReservedUntil is Expired and the quarantine.
	ReservedUntil int64
	// Left: a release was sent, or may have been: the grant ends after its last ID, at any time.
	Left bool
}

// Emit is a regular ID.
type Emit struct {
	By    string
	MS    int64 // Unix ms that it embeds
	Low   int64 // its low bits
	Order int64 // greater for an ID that was answered later to the same daemon's callers
}

// Trace is all that is known. Grants of which a daemon has told nothing may be missing.
type Trace struct {
	Grants []Grant
	Emits  []Emit
}

// Result is what Check found.
type Result struct {
	Grants, Emits, Pairs int // that were judged; pairs are of grants that overlap
	// Broken names the step of the specification that is not one, each with an example.
	Broken []string
}

// most is how many examples of broken steps are told.
const most = 10

func (r *Result) breaks(format string, args ...any) {
	if len(r.Broken) < most {
		r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
	}
}

func (g Grant) String() string {
	return fmt.Sprintf("%s's grant of %v from %s to %s", g.By, g.Slot, snowflake.FormatMS(g.Created), snowflake.FormatMS(g.Expired))
}

// Check follows the trace.
func (t Trace) Check() (r Result) {
	r.Grants, r.Emits = len(t.Grants), len(t.Emits)
	last := t.emits(&r)
	order := make([]int, len(t.Grants))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { // a lease that began and ended in a moment comes before the next
		return cmp.Or(cmp.Compare(t.Grants[a].Created, t.Grants[b].Created), cmp.Compare(last[a], last[b]))
	})
	for i, at := range order {
		for _, before := range order[:i] {
			if g, h := t.Grants[before], t.Grants[at]; g.Slot.Overlaps(h.Slot) {
				r.Pairs++
				apart(&r, g, h, last[before])
			}
		}
	}
	return r
}

// apart is the step Grant of h, with the record of g in the store. lastMS is the last time
// that was embedded under g, 0 for none.
func apart(r *Result, g, h Grant, lastMS int64) {
	switch {
	case h.Created < g.Created:
		panic("trace: grants are followed in their order")
	case h.Created <= lastMS: // after any release: its time is at least the last one (Send, Ended)
		r.breaks("Free: %v came while %s embedded %s under an earlier one, %v", h, g.By, snowflake.FormatMS(lastMS), g)
	case !g.Left && h.Created < g.ReservedUntil:
		r.breaks("Free: %v came while the slot was reserved until %s for %v", h, snowflake.FormatMS(g.ReservedUntil), g)
	}
}

// emits is the step Emit for each ID, by the grants of its daemon. It returns the last time
// that was embedded under each grant.
func (t Trace) emits(r *Result) (last map[int]int64) {
	last = map[int]int64{}
	grants := map[string][]int{}
	for i, g := range t.Grants {
		grants[g.By] = append(grants[g.By], i)
	}
	emits := slices.SortedFunc(slices.Values(t.Emits), func(a, b Emit) int {
		return cmp.Or(cmp.Compare(a.By, b.By), cmp.Compare(a.Order, b.Order))
	})
	var before Emit
	for _, e := range emits {
		if e.By == before.By && (e.MS < before.MS || e.MS == before.MS && e.Low <= before.Low) {
			r.breaks("CanMake: %s made %s, %d after %s, %d", e.By, snowflake.FormatMS(e.MS), e.Low, snowflake.FormatMS(before.MS), before.Low)
		}
		before = e
		under := -1
		for _, i := range grants[e.By] {
			g := t.Grants[i]
			allows := g.Slot.Start <= e.Low && e.Low < g.Slot.End && g.Created <= e.MS && e.MS < g.Expired
			if allows && (under < 0 || t.Grants[under].Created < g.Created) { // the slot was granted to it again
				under = i
			}
		}
		if under < 0 {
			r.breaks("Regular: %s made %s, %d under none of its grants", e.By, snowflake.FormatMS(e.MS), e.Low)
			continue
		}
		last[under] = max(last[under], e.MS)
	}
	return last
}
