package main

import "slices"

// spread sums up what several rounds measured.
type spread struct {
	median, least, greatest float64
}

// spreadOf needs at least one value.
func spreadOf(values []float64) spread {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return spread{
		median:   (sorted[(n-1)/2] + sorted[n/2]) / 2,
		least:    sorted[0],
		greatest: sorted[n-1],
	}
}

// ratioOf sums up the ratios within the rounds. That is not the ratio of the
// medians: what slowed down a whole round cancels out.
func ratioOf(ours, theirs []float64) spread {
	ratios := make([]float64, len(ours))
	for i := range ratios {
		ratios[i] = ours[i] / theirs[i]
	}
	return spreadOf(ratios)
}
