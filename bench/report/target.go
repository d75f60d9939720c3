package report

import (
	"fmt"
	"math"
)

// Target is a promise about a row: a series, or its ratio to another one, is on
// the right side of a bound.
type Target struct {
	Work      string // as the table shows it
	Criterion string // what is held against the bound
	Of        Series
	To        Series // zero: Of itself, not a ratio
	Bound     float64
	AtMost    bool // else at least
	Format    func(float64) string
	// Fails is the bound at which a check fails, where it does not fail at Tolerance.
	Fails float64
}

// Verdict is what became of a target.
type Verdict struct {
	Target   Target
	Measured bool
	Why      string // not measured
	Spread   Spread
	// Short is the share by which the median misses the bound; 0 if it does
	// not, infinite if the bound is 0.
	Short float64
}

// Judge holds the samples against a target. missing says why a series has no
// values.
func (t Target) Judge(s *Samples, missing func(Series) string) Verdict {
	v := Verdict{Target: t}
	if t.To == (Series{}) {
		v.Spread, v.Measured = s.Spread(t.Of)
	} else {
		v.Spread, v.Measured = s.Ratio(t.Of, t.To)
	}
	if v.Measured {
		v.Short = t.shortOf(t.Bound, v.Spread.Median)
		return v
	}
	v.Why = missing(t.Of)
	if _, there := s.Spread(t.Of); there {
		v.Why = missing(t.To)
	}
	return v
}

func (t Target) shortOf(bound, value float64) float64 {
	lack := bound - value
	if t.AtMost {
		lack = -lack
	}
	switch {
	case math.IsNaN(lack):
		return math.Inf(1)
	case lack <= 0:
		return 0
	case bound == 0:
		return math.Inf(1)
	}
	return lack / bound
}

// fails reports whether the target is missed by more than a check lets pass.
func (v Verdict) fails() bool {
	if v.Target.Fails != 0 {
		return v.Measured && v.Target.shortOf(v.Target.Fails, v.Spread.Median) > 0
	}
	return v.Short > Tolerance
}

func (t Target) bound() string {
	sign := ">= "
	if t.AtMost {
		sign = "<= "
	}
	return sign + t.Format(t.Bound)
}

func (v Verdict) String() string {
	switch {
	case !v.Measured:
		return "not measured: " + v.Why
	case v.Short == 0:
		return "ok"
	case math.IsInf(v.Short, 1):
		return "not met"
	case v.Short < 0.01:
		return "short by less than 1%"
	case v.Target.Fails != 0 && v.fails():
		return fmt.Sprintf("short by %.0f%%, and of %s too", 100*v.Short, v.Target.Format(v.Target.Fails))
	}
	return fmt.Sprintf("short by %.0f%%", 100*v.Short)
}

// Tolerance is by how much a check lets a target be missed: measurements vary.
const Tolerance = 0.10

// Missed are the verdicts that fall short by more than the tolerance, or of Fails.
func Missed(verdicts []Verdict) (missed []Verdict) {
	for _, v := range verdicts {
		if v.fails() {
			missed = append(missed, v)
		}
	}
	return missed
}
