package report

import (
	"maps"
	"slices"
)

// Series names what is measured once in each round.
type Series struct {
	Row      string // its key
	Subject  string // whose: a server's name
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
	return spreadOfRounds(s.values[series])
}

// Ratio sums up the ratios within the rounds that have both; false if there is
// none. That is not the ratio of the medians: what slowed down a whole round
// cancels out.
func (s *Samples) Ratio(of, to Series) (Spread, bool) {
	ratios := map[int]float64{}
	for round, value := range s.values[of] {
		if other, ok := s.values[to][round]; ok && other != 0 {
			ratios[round] = value / other
		}
	}
	return spreadOfRounds(ratios)
}

func spreadOfRounds(byRound map[int]float64) (Spread, bool) {
	values := slices.Collect(maps.Values(byRound))
	if len(values) == 0 {
		return Spread{}, false
	}
	return SpreadOf(values), true
}
