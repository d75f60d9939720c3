//go:build linux

package clients

import (
	"fmt"
	"io"

	"github.com/kazahana/kazahana/bench/suite"

	"github.com/kazahana/kazahana/bench/report"
)

// The languages, and the rows that aims are about, by the names that the
// languages' programs give them.
const (
	inPython, inNode, inGo, inJava = "Python", "Node", "Go", "Java"

	echo   = "echo"
	single = "single"
	ahead  = "prefetch 64"

	awaited  = "asyncio, one after the other"
	gathered = "asyncio, gather of 64"
)

// Quantities.
const (
	rate = "IDs/s"
	cost = "cost" // of an ID, in nanoseconds
	p50  = "p50"
	p99  = "p99"
)

// uuidOf is the row of the language's own UUIDs.
func uuidOf(language string) string {
	if language == inGo {
		return "uuid"
	}
	return "uuid4"
}

// aims are the promises about the clients. Beside the last one stands what it says
// nothing of: UUIDs of Node from entropy that it has gathered ahead are faster.
func aims() (all []report.Target) {
	series := func(language, row, quantity string) report.Series {
		return report.Series{Row: row, Subject: language, Quantity: quantity}
	}
	for _, language := range []string{inPython, inNode, inGo, inJava} {
		dearest := 1.5
		if language == inJava {
			dearest = 3 // a call changes threads there and back, a bare round trip does not
		}
		all = append(all, report.Target{
			Work: language, Criterion: "p50 of a single call / of a bare round trip",
			Of: series(language, single, p50), To: series(language, echo, p50), Bound: dearest, AtMost: true, Format: report.Ratio,
		})
		switch language {
		case inPython:
			all = append(all, report.Target{
				Work: language, Criterion: "IDs/s with prefetch / uuid.uuid4()",
				Of: series(language, ahead, rate), To: series(language, uuidOf(language), rate), Bound: 2.5, Format: report.Ratio,
			}, report.Target{
				Work: language, Criterion: "IDs/s of 64 calls in a gather / one after the other",
				Of: series(language, gathered, rate), To: series(language, awaited, rate), Bound: 1.5, Format: report.Ratio,
			})
		case inNode:
			all = append(all, report.Target{
				Work: language, Criterion: "million IDs/s with prefetch",
				Of: series(language, ahead, rate), Bound: 3e6, Format: report.Mega,
			}, report.Target{
				Work: language, Criterion: "IDs/s with prefetch / randomUUID({ disableEntropyCache: true })",
				Of: series(language, ahead, rate), To: series(language, uuidOf(language), rate), Bound: 4, Format: report.Ratio,
			})
		case inJava:
			all = append(all, report.Target{
				Work: language, Criterion: "IDs/s with prefetch / UUID.randomUUID()",
				Of: series(language, ahead, rate), To: series(language, uuidOf(language), rate), Bound: 2.5, Format: report.Ratio,
			})
		case inGo:
			all = append(all, report.Target{
				Work: language, Criterion: "ns for an ID with prefetch",
				Of: series(language, ahead, cost), Bound: 50, AtMost: true, Format: report.Nanoseconds,
			})
		}
	}
	return all
}

// others is the share of the core that other processes had: making UUIDs takes
// nothing but time on the processor, so that the mean should be the median. Java is left
// out: its own compiler shares the core.
func others(s *report.Samples) (share float64) {
	for _, language := range []string{inPython, inNode, inGo} {
		series := report.Series{Row: uuidOf(language), Subject: language, Quantity: p50}
		median, mean := series, series
		mean.Quantity = cost
		if ratio, ok := s.Ratio(median, mean); ok {
			share = max(share, 1-ratio.Median)
		}
	}
	return share
}

// judge says which aims are met. Its error is that of missed ones, if they count, or
// of a row that is not there.
func judge(out io.Writer, s *report.Samples, p suite.Plan) error {
	var verdicts []report.Verdict
	for _, aim := range aims() {
		v := aim.Judge(s, func(series report.Series) string { return "no row " + series.Row })
		if !v.Measured {
			return fmt.Errorf("%s: %s: %v", aim.Work, aim.Criterion, v)
		}
		verdicts = append(verdicts, v)
	}
	notes := []string{`Node's randomUUID() takes entropy that it has gathered ahead: the row "uuid4, cached entropy"`}
	if share := others(s); share > report.Tolerance {
		notes = append(notes, fmt.Sprintf("other processes had %s of the core: figures that are no ratios say little", report.Percent(share)))
	}
	return p.Conclude(out, verdicts, notes)
}
