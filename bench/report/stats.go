package report

import "slices"

// Spread sums up what several rounds measured.
type Spread struct {
	Median, Least, Greatest float64
}

// SpreadOf needs at least one value.
func SpreadOf(values []float64) Spread {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return Spread{
		Median:   (sorted[(n-1)/2] + sorted[n/2]) / 2,
		Least:    sorted[0],
		Greatest: sorted[n-1],
	}
}
