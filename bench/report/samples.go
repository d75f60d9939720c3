// Package report keeps the measurements, and judges and prints them.
package report

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Series names a measurement of each round.
type Series struct {
	Row      string
	Subject  string // the owner: a server's name
	Quantity string
}

// Samples are the values of all series, by round. The zero value is empty.
type Samples struct {
	values map[Series]map[int]float64
}

// Add notes the value of a round; a second one in the same round replaces it.
func (s *Samples) Add(round int, series Series, value float64) {
	if s.values == nil {
		s.values = map[Series]map[int]float64{}
	}
	if s.values[series] == nil {
		s.values[series] = map[int]float64{}
	}
	s.values[series][round] = value
}

// Spread sums up a series; false if it is empty.
func (s *Samples) Spread(series Series) (Spread, bool) {
	return spreadOf(slices.Collect(maps.Values(s.values[series])))
}

// Ratio sums up the ratios within the rounds that have both; false if there is
// none. That is not the ratio of the medians: what slowed down a whole round
// cancels out.
func (s *Samples) Ratio(of, to Series) (Spread, bool) {
	var ratios []float64
	for round, value := range s.values[of] {
		if other, ok := s.values[to][round]; ok && other != 0 {
			ratios = append(ratios, value/other)
		}
	}
	return spreadOf(ratios)
}

// Spread sums up what several rounds measured.
type Spread struct {
	Median, Least, Greatest float64
}

func spreadOf(values []float64) (Spread, bool) {
	n := len(values)
	if n == 0 {
		return Spread{}, false
	}
	slices.Sort(values)
	return Spread{Median: (values[(n-1)/2] + values[n/2]) / 2, Least: values[0], Greatest: values[n-1]}, true
}

// Show gives the median, and the least and greatest.
func (s Spread) Show(format func(float64) string) string {
	if s.Least == s.Greatest {
		return format(s.Median)
	}
	return fmt.Sprintf("%s (%s-%s)", format(s.Median), format(s.Least), format(s.Greatest))
}

// Formats of values.

func Ratio(v float64) string        { return fmt.Sprintf("%.2f", v) }
func Nanoseconds(v float64) string  { return fmt.Sprintf("%.2f", v) }
func Microseconds(v float64) string { return fmt.Sprintf("%.1f", v/1e3) }     // of nanoseconds
func Milliseconds(v float64) string { return fmt.Sprintf("%.1f", v/1e6) }     // of nanoseconds
func MiB(v float64) string          { return fmt.Sprintf("%.1f", v/(1<<20)) } // of bytes
func Whole(v float64) string        { return fmt.Sprintf("%.0f", v) }
func Kilo(v float64) string         { return fmt.Sprintf("%.1f", v/1e3) }
func Mega(v float64) string         { return fmt.Sprintf("%.2f", v/1e6) }

// Percentile is the smallest time within which that many were done, in nanoseconds.
func Percentile(sorted []time.Duration, percent int) float64 {
	return float64(sorted[max((len(sorted)*percent+99)/100, 1)-1])
}
