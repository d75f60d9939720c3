package main

import (
	"slices"
	"testing"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   spread
	}{
		{[]float64{3}, spread{3, 3, 3}},
		{[]float64{4, 1}, spread{2.5, 1, 4}},
		{[]float64{9, 1, 5}, spread{5, 1, 9}},
		{[]float64{8, 2, 100, 4}, spread{6, 2, 100}},
	} {
		before := slices.Clone(c.values)
		if got := spreadOf(c.values); got != c.want {
			t.Errorf("%v: %v, want %v", c.values, got, c.want)
		}
		if !slices.Equal(before, c.values) {
			t.Errorf("%v became %v: the order tells the rounds", before, c.values)
		}
	}
}

// TestRatioIsPaired: a round in which everything took twice as long must not
// show in the ratio.
func TestRatioIsPaired(t *testing.T) {
	ours, theirs := []float64{120, 60, 240}, []float64{100, 50, 200}
	if got, want := ratioOf(ours, theirs), (spread{1.2, 1.2, 1.2}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := ratioOf([]float64{1, 2, 9}, []float64{1, 1, 3}), (spread{2, 1, 3}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}
