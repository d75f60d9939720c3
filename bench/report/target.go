package report

import (
	"cmp"
	"fmt"
	"math"
)

// Target is a promise about a row: a series, or its ratio to another one, is on
// the right side of a bound.
type Target struct {
	Work      string // as the table shows it
	Criterion string // the measure that is held against the bound
	Of        Series
	To        Series // zero: Of itself, not a ratio
	Bound     float64
	AtMost    bool // else at least
	Format    func(float64) string
	// Margin is the share by which the median may miss the bound before a check fails: what
	// medians of unchanged programs vary by on a shared machine. 0 means 10%.
	Margin float64
}

// margin is what a check allows.
func (t Target) margin() float64 { return cmp.Or(t.Margin, 0.10) }

// Verdict is what became of a target.
type Verdict struct {
	Target Target
	Why    string // it was not measured; "": it was
	Spread Spread
	// Short is the share by which the median misses the bound; 0 if it does
	// not, infinite if the bound is 0.
	Short float64
}

// Judge holds the samples against the target. absent says why there are no values, if none
// are known.
func (t Target) Judge(s *Samples, absent string) Verdict {
	v := Verdict{Target: t}
	measured := false
	if t.To == (Series{}) {
		v.Spread, measured = s.Spread(t.Of)
	} else {
		v.Spread, measured = s.Ratio(t.Of, t.To)
	}
	if !measured {
		v.Why = cmp.Or(absent, "no value")
		return v
	}
	lack := t.Bound - v.Spread.Median
	if t.AtMost {
		lack = -lack
	}
	switch {
	case math.IsNaN(lack):
		v.Short = math.Inf(1)
	case lack > 0:
		v.Short = lack / t.Bound
	}
	return v
}

// Misses reports whether the target is missed by more than its margin.
func (v Verdict) Misses() bool { return v.Short > v.Target.margin() }

func (t Target) bound() string {
	sign := ">= "
	if t.AtMost {
		sign = "<= "
	}
	return sign + t.Format(t.Bound)
}

func (v Verdict) String() string {
	switch {
	case v.Why != "":
		return "not measured: " + v.Why
	case v.Short == 0:
		return "ok"
	case math.IsInf(v.Short, 1):
		return "not met"
	case v.Short < 0.01:
		return "short by less than 1%"
	}
	return fmt.Sprintf("short by %.0f%%, margin %.0f%%", 100*v.Short, 100*v.Target.margin())
}
