package clients

import (
	"io"
	"testing"

	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/bench/suite"
)

// measured has every row that an aim is about, at factor times its bound.
func measured(t *testing.T, factor float64) *suite.Run {
	t.Helper()
	r, err := newSuite().Parse(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, pass := range []bool{true, false} { // values first, then what ratios are to
		for _, row := range r.Rows {
			for _, aim := range row.Targets {
				if pass && aim.To == (report.Series{}) {
					r.Samples.Add(0, aim.Of, aim.Bound*factor)
				}
				if pass || aim.To == (report.Series{}) {
					continue
				}
				of, known := r.Samples.Spread(aim.Of)
				if !known {
					of.Median = 1000
					r.Samples.Add(0, aim.Of, of.Median)
				}
				r.Samples.Add(0, aim.To, of.Median/aim.Bound/factor)
			}
		}
	}
	return r
}

func TestAims(t *testing.T) {
	for factor, want := range map[float64]int{1: 0, 1.05: 0, 2: 5, 0.5: 5} { // single calls and Go's IDs; prefetch and the gather
		missed := 0
		for _, v := range measured(t, factor).Verdicts() {
			if v.Why != "" {
				t.Errorf("%s, %s: %v", v.Target.Work, v.Target.Criterion, v)
			}
			if v.Misses() {
				missed++
			}
		}
		if missed != want {
			t.Errorf("at %v times the bounds %d aims are missed, want %d", factor, missed, want)
		}
	}
}
