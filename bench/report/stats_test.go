package report

import (
	"slices"
	"testing"
)

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
		before := slices.Clone(c.values)
		if got := SpreadOf(c.values); got != c.want {
			t.Errorf("%v: %v, want %v", c.values, got, c.want)
		}
		if !slices.Equal(before, c.values) {
			t.Errorf("%v became %v: the order tells the rounds", before, c.values)
		}
	}
}
