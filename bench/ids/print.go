//go:build linux

package ids

import (
	"fmt"
	"io"
	"time"

	"github.com/kazahana/kazahana/bench/report"
)

// report prints the description of the run, both tables and the notes. Its
// error is that of missed targets, if they count.
func (b *bench) report(out io.Writer, m machine) error {
	p := b.plan
	where := fmt.Sprintf("servers and load generator each a process, all pinned to core %d", p.Core)
	if p.Core < 0 {
		where = "servers and load generator each a process, not pinned"
	}
	fmt.Fprintf(out, "machine  %v\n", m)
	fmt.Fprintf(out, "method   %s; %d rounds of %v for each row and server, interleaved\n", where, p.Rounds, p.Duration)
	fmt.Fprintf(out, "shown    median of the rounds (least-greatest); a ratio is %s / other, the median of the ratios within each round\n\n", kazahanad)

	subjects := []string{kazahanad}
	for _, r := range references {
		subjects = append(subjects, r.name)
	}
	var figures []report.Figure
	for _, r := range p.rows {
		figures = append(figures, r.figures...)
	}
	if err := report.PrintFigures(out, &b.samples, subjects, figures); err != nil {
		return err
	}
	return p.Conclude(out, b.verdicts(), b.notes())
}

// verdicts judges the targets of the rows that were measured.
func (b *bench) verdicts() (verdicts []report.Verdict) {
	for _, r := range b.plan.rows {
		for _, t := range r.targets {
			verdicts = append(verdicts, t.Judge(&b.samples, b.whyMissing))
		}
	}
	return verdicts
}

func (b *bench) whyMissing(s report.Series) string {
	switch {
	case !b.plan.has(s.Row):
		return fmt.Sprintf("row %s was not asked for", s.Row)
	case b.unmeasured[s.Row] != "":
		return b.unmeasured[s.Row]
	case b.absent[s.Subject] != "":
		return b.absent[s.Subject]
	}
	return "no value"
}

func (b *bench) notes() []string {
	notes := []string{
		"each connection sends one request after another; pipelined: it sends 64 together, then awaits their answers",
		"rates count both halves of the work, the server's and the load generator's, because they share a core; for times, a ratio below 1 is better",
		"every answer is checked: number, form and, for IDs, strict increase on its connection; " +
			"of the daemon's batches, one in 64 ID by ID and the others at both ends",
	}
	for _, r := range b.plan.rows {
		if r.note != "" {
			notes = append(notes, fmt.Sprintf("%s: %s", r.key, r.note))
		}
	}
	if b.plan.Rounds < 5 || b.plan.Duration < time.Second {
		notes = append(notes, "few or short rounds: these figures show that all works, and are not to be quoted")
	}
	return append(notes, b.remarks...)
}
