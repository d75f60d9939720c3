package ids

import (
	"slices"
	"testing"

	"github.com/kazahana/kazahana/bench/report"
)

// TestTargetsAreMeasured: what a target is about is a figure of a row, and a server.
func TestTargetsAreMeasured(t *testing.T) {
	b := newBench()
	known := []string{kazahanad}
	for _, r := range b.references() {
		known = append(known, r.name)
	}
	var figures []report.Figure
	for _, r := range b.suite.Rows {
		figures = append(figures, r.Figures...)
	}
	shown := func(s report.Series) bool {
		return slices.Contains(known, s.Subject) && slices.ContainsFunc(figures, func(f report.Figure) bool { return f.Row == s.Row && f.Quantity == s.Quantity })
	}
	for _, r := range b.suite.Rows {
		if r.Help == "" || len(r.Figures) == 0 || r.Measure == nil {
			t.Errorf("row %q", r.Words)
		}
		for _, target := range r.Targets {
			if !shown(target.Of) || target.To != (report.Series{}) && !shown(target.To) {
				t.Errorf("%s, %s: of %v, to %v", target.Work, target.Criterion, target.Of, target.To)
			}
			if target.Format == nil || target.Work == "" || target.Bound == 0 {
				t.Errorf("target %+v", target)
			}
		}
	}
}
