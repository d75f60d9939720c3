package report

import (
	"math"
	"strings"
	"testing"
)

var (
	ours   = Series{"row", "ours", "rate"}
	theirs = Series{"row", "theirs", "rate"}
)

func samplesOf(t *testing.T, values map[Series][]float64) *Samples {
	t.Helper()
	s := new(Samples)
	for series, values := range values {
		for round, value := range values {
			if !math.IsNaN(value) {
				s.Add(round, series, value)
			}
		}
	}
	return s
}

// TestRatioIsPaired: a round in which everything took twice as long must not
// show in the ratio, and a round that has one side only must not count.
func TestRatioIsPaired(t *testing.T) {
	s := samplesOf(t, map[Series][]float64{ours: {120, 60, 240, 1}, theirs: {100, 50, 200, math.NaN(), 7}})
	if got, ok := s.Ratio(ours, theirs); !ok || got != (Spread{1.2, 1.2, 1.2}) {
		t.Errorf("%v, %v", got, ok)
	}
	s = samplesOf(t, map[Series][]float64{ours: {1, 2, 9}, theirs: {1, 1, 3}})
	if got, ok := s.Ratio(ours, theirs); !ok || got != (Spread{2, 1, 3}) {
		t.Errorf("%v, %v", got, ok)
	}
	for name, s := range map[string]*Samples{
		"nothing":         new(Samples),
		"one side":        samplesOf(t, map[Series][]float64{ours: {1}}),
		"no common round": samplesOf(t, map[Series][]float64{ours: {1}, theirs: {math.NaN(), 1}}),
		"nothing done":    samplesOf(t, map[Series][]float64{ours: {1}, theirs: {0}}),
	} {
		if got, ok := s.Ratio(ours, theirs); ok {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestVerdict(t *testing.T) {
	for name, c := range map[string]struct {
		bound  float64
		atMost bool
		values []float64
		want   string
		short  float64
	}{
		"exactly":          {1.25, false, []float64{1.25}, "ok", 0},
		"more":             {1.25, false, []float64{2}, "ok", 0},
		"the median":       {10, false, []float64{1, 10, 11}, "ok", 0},
		"a little less":    {100, false, []float64{99.5}, "short by less than 1%", 0.005},
		"a fifth less":     {1, false, []float64{0.8}, "short by 20%", 0.2},
		"below the most":   {40, true, []float64{12}, "ok", 0},
		"at the most":      {40, true, []float64{40}, "ok", 0},
		"twice the most":   {40, true, []float64{80}, "short by 100%", 1},
		"none as promised": {0, true, []float64{0}, "ok", 0},
		"some, not none":   {0, true, []float64{1}, "not met", math.Inf(1)},
		"not a number":     {1, true, []float64{math.Inf(1) - math.Inf(1)}, "not measured: nobody knows", 0},
	} {
		target := Target{Of: ours, Bound: c.bound, AtMost: c.atMost, Format: Ratio}
		v := target.Judge(samplesOf(t, map[Series][]float64{ours: c.values}), func(Series) string { return "nobody knows" })
		if v.String() != c.want || math.Abs(v.Short-c.short) > 1e-9 {
			t.Errorf("%s: %v, short by %v", name, v, v.Short)
		}
	}
}

func TestWhatIsMissing(t *testing.T) {
	missing := func(s Series) string { return s.Subject }
	target := Target{Of: ours, To: theirs, Bound: 1, Format: Ratio}
	if v := target.Judge(new(Samples), missing); v.String() != "not measured: ours" {
		t.Error(v)
	}
	if v := target.Judge(samplesOf(t, map[Series][]float64{ours: {1}}), missing); v.String() != "not measured: theirs" {
		t.Error(v)
	}
}

func TestMissed(t *testing.T) {
	verdict := func(short float64) Verdict { return Verdict{Measured: true, Short: short} }
	all := []Verdict{{Why: "not measured"}, verdict(0), verdict(0.10), verdict(0.11), verdict(math.Inf(1))}
	if got := Missed(all); len(got) != 2 || got[0].Short != 0.11 {
		t.Errorf("a check fails for %v", got)
	}
}

// A target with a bound of its own for checks fails below that, and nowhere else.
func TestFails(t *testing.T) {
	target := Target{Of: ours, Bound: 0.40, Fails: 0.30, Format: Ratio}
	for value, want := range map[float64]string{0.41: "ok", 0.32: "short by 20%", 0.28: "short by 30%, and of 0.30 too"} {
		v := target.Judge(samplesOf(t, map[Series][]float64{ours: {value}}), nil)
		if missed := len(Missed([]Verdict{v})) > 0; v.String() != want || missed != (value < 0.30) {
			t.Errorf("%v: %v, and a check fails: %v", value, v, missed)
		}
	}
	if missed := Missed([]Verdict{target.Judge(new(Samples), func(Series) string { return "absent" })}); len(missed) > 0 {
		t.Errorf("a check fails for what was not measured: %v", missed)
	}
}

func TestTables(t *testing.T) {
	s := samplesOf(t, map[Series][]float64{
		ours: {1500, 3000}, theirs: {1000, 1500},
		{"row", "ours", "p99"}:    {2500, 4500},
		{"other", "ours", "size"}: {3 << 20},
	})
	figures := []Figure{
		{Row: "row", Title: "asking", Quantity: "rate", Measure: "1000/s", Format: Kilo},
		{Row: "row", Title: "asking", Quantity: "p99", Format: Microseconds},
		{Row: "other", Title: "growing", Quantity: "size", Format: MiB, Alone: true},
	}
	var out strings.Builder
	if err := PrintFigures(&out, s, []string{"ours", "theirs", "absent"}, figures); err != nil {
		t.Fatal(err)
	}
	verdicts := []Verdict{
		Target{Work: "asking", Criterion: "rate / theirs", Of: ours, To: theirs, Bound: 2, Format: Ratio}.Judge(s, nil),
		Target{Work: "asking", Criterion: "calm", Of: Series{}, Bound: 2, AtMost: true, Format: Ratio}.Judge(s, func(Series) string { return "no time" }),
	}
	if err := PrintVerdicts(&out, verdicts); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"work measure ours theirs ratio absent ratio",
		"asking 1000/s 2.2 (1.5-3.0) 1.2 (1.0-1.5) 1.75 - - p99 3.5 (2.5-4.5) - - - - growing size 3.0 work",
		"asking rate / theirs >= 2.00 1.75 (1.50-2.00) short by 12% calm <= 2.00 - not measured: no time",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
