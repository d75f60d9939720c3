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

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   Spread
	}{
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{4, 1}, Spread{2.5, 1, 4}},
		{[]float64{9, 1, 5}, Spread{5, 1, 9}},
		{[]float64{8, 2, 100, 4}, Spread{6, 2, 100}},
	} {
		if got, ok := samplesOf(t, map[Series][]float64{ours: c.values}).Spread(ours); !ok || got != c.want {
			t.Errorf("%v: %v, want %v", c.values, got, c.want)
		}
	}
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
		"a fifth less":     {1, false, []float64{0.8}, "short by 20%, margin 10%", 0.2},
		"below the most":   {40, true, []float64{12}, "ok", 0},
		"at the most":      {40, true, []float64{40}, "ok", 0},
		"twice the most":   {40, true, []float64{80}, "short by 100%, margin 10%", 1},
		"none as promised": {0, true, []float64{0}, "ok", 0},
		"some, not none":   {0, true, []float64{1}, "not met", math.Inf(1)},
		"not a number":     {1, true, []float64{math.Inf(1) - math.Inf(1)}, "not measured: nobody knows", 0},
	} {
		target := Target{Of: ours, Bound: c.bound, AtMost: c.atMost, Format: Ratio}
		v := target.Judge(samplesOf(t, map[Series][]float64{ours: c.values}), "nobody knows")
		if v.String() != c.want || math.Abs(v.Short-c.short) > 1e-9 {
			t.Errorf("%s: %v, short by %v", name, v, v.Short)
		}
	}
}

func TestWhatIsMissing(t *testing.T) {
	target := Target{Of: ours, To: theirs, Bound: 1, Format: Ratio}
	for _, s := range []*Samples{new(Samples), samplesOf(t, map[Series][]float64{ours: {1}})} {
		if v := target.Judge(s, "it is away"); v.String() != "not measured: it is away" || v.Misses() {
			t.Error(v)
		}
	}
	if v := target.Judge(new(Samples), ""); v.String() != "not measured: no value" {
		t.Error(v)
	}
}

// A check fails beyond a target's margin, and nowhere else.
func TestMissed(t *testing.T) {
	for name, c := range map[string]struct {
		target Target
		value  float64
		says   string
		missed bool
	}{
		"above":               {Target{Bound: 1}, 1.1, "ok", false},
		"within the margin":   {Target{Bound: 1}, 0.92, "short by 8%, margin 10%", false},
		"beyond the margin":   {Target{Bound: 1}, 0.88, "short by 12%, margin 10%", true},
		"a margin of its own": {Target{Bound: 0.40, Margin: 0.25}, 0.32, "short by 20%, margin 25%", false},
		"beyond its own":      {Target{Bound: 0.40, Margin: 0.25}, 0.28, "short by 30%, margin 25%", true},
		"a narrow one":        {Target{Bound: 1, Margin: 0.03}, 0.95, "short by 5%, margin 3%", true},
		"none was promised":   {Target{Bound: 0, AtMost: true}, 1, "not met", true},
	} {
		c.target.Of, c.target.Format = ours, Ratio
		v := c.target.Judge(samplesOf(t, map[Series][]float64{ours: {c.value}}), "")
		if v.String() != c.says || v.Misses() != c.missed {
			t.Errorf("%s: %v, and a check fails: %v", name, v, v.Misses())
		}
	}
}

func TestTables(t *testing.T) {
	s := samplesOf(t, map[Series][]float64{
		{"row", "ours", "1000/s"}: {1500, 3000}, {"row", "theirs", "1000/s"}: {1000, 1500},
		{"row", "ours", "p99"}:    {2500, 4500},
		{"other", "ours", "size"}: {3 << 20},
	})
	figures := []Figure{
		{Row: "row", Title: "asking", Quantity: "1000/s", Format: Kilo},
		{Row: "row", Title: "asking", Quantity: "p99", Format: Microseconds},
		{Row: "other", Title: "growing", Quantity: "size", Format: MiB},
	}
	var out strings.Builder
	for _, overFirst := range []bool{false, true} {
		if err := PrintFigures(&out, s, []string{"ours", "theirs", "absent"}, overFirst, figures); err != nil {
			t.Fatal(err)
		}
	}
	rate := func(subject string) Series { return Series{"row", subject, "1000/s"} }
	verdicts := []Verdict{
		Target{Work: "asking", Criterion: "rate / theirs", Of: rate("ours"), To: rate("theirs"), Bound: 2, Format: Ratio}.Judge(s, ""),
		Target{Work: "asking", Criterion: "calm", Of: Series{}, Bound: 2, AtMost: true, Format: Ratio}.Judge(s, "no time"),
	}
	if err := PrintVerdicts(&out, verdicts); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"work measure ours theirs ratio absent ratio",
		"asking 1000/s 2.2 (1.5-3.0) 1.2 (1.0-1.5) 1.75 - - p99 3.5 (2.5-4.5) - - - - growing size 3.0 - - - - work",
		"asking 1000/s 2.2 (1.5-3.0) 1.2 (1.0-1.5) 0.58 - -",
		"asking rate / theirs >= 2.00 1.75 (1.50-2.00) short by 12%, margin 10% calm <= 2.00 - not measured: no time",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
