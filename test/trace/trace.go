// Package trace holds what happened in a whole world against the specifications of docs/model: each
// step must be one that the specification allows after the steps before it.
package trace

import "fmt"

// Result is what Check found.
type Result struct {
	Grants, Emits, Pairs int // that were judged; pairs are of grants that overlap
	// Broken names the step of the specification that is not one, each with an example.
	Broken []string
}

// most is how many examples of broken steps are told.
const most = 10

func (r *Result) breaks(format string, args ...any) {
	if len(r.Broken) < most {
		r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
	}
}
