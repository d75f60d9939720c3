//go:build linux

package clients

import (
	"strings"
	"testing"

	"github.com/kazahana/kazahana/bench/suite"

	"github.com/kazahana/kazahana/bench/report"
)

// measured has every row that an aim is about, at factor times its bound.
func measured(factor float64) *report.Samples {
	s := new(report.Samples)
	for _, aim := range aims() {
		if aim.To == (report.Series{}) {
			s.Add(0, aim.Of, aim.Bound*factor)
		}
	}
	for _, aim := range aims() {
		of, known := s.Spread(aim.Of)
		if !known {
			of.Median = 1000
			s.Add(0, aim.Of, of.Median)
		}
		if aim.To != (report.Series{}) {
			s.Add(0, aim.To, of.Median/aim.Bound/factor)
		}
	}
	return s
}

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		samples *report.Samples
		check   bool
		want    string // in the error
	}{
		"at the bounds":            {measured(1), true, ""},
		"missed, and nobody asked": {measured(2), false, ""},
		"single calls too dear":    {measured(2), true, "5 targets are missed"},   // and Go's IDs
		"prefetch too slow":        {measured(0.5), true, "5 targets are missed"}, // and the gather
		"within the tolerance":     {measured(1.05), true, ""},
		"a row is missing":         {new(report.Samples), false, "no row " + single},
	} {
		var out strings.Builder
		err := judge(&out, c.samples, suite.Plan{Check: c.check})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q\n%s", name, err, c.want, out.String())
		}
	}
}

func TestOthers(t *testing.T) {
	s := new(report.Samples)
	for round, mean := range []float64{1000, 4000, 2000} {
		s.Add(round, report.Series{Row: "uuid4", Subject: inPython, Quantity: p50}, 1000)
		s.Add(round, report.Series{Row: "uuid4", Subject: inPython, Quantity: cost}, mean)
	}
	if share := others(s); share != 0.5 {
		t.Errorf("others had %v", share)
	}
}
