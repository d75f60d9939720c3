//go:build linux

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// measure is what a row shows of each round.
type measure struct {
	name   string
	value  func(loadResult) float64
	format func(float64) string
}

func measuresOf(w workload) []measure {
	all := []measure{{
		w.unit(), func(r loadResult) float64 { return r.rate() * float64(w.count) }, thousands,
	}}
	if w.timed() {
		all = append(all,
			measure{"p50, µs", func(r loadResult) float64 { return float64(r.P50) }, microseconds},
			measure{"p99, µs", func(r loadResult) float64 { return float64(r.P99) }, microseconds},
		)
	}
	return all
}

// print writes the description of the run, the table and the remarks.
func (r *results) print(out io.Writer) error {
	p := r.plan
	where := fmt.Sprintf("servers and load generator each a process, all pinned to core %d", p.core)
	if p.core < 0 {
		where = "servers and load generator each a process, not pinned"
	}
	var names []string
	for _, s := range r.servers {
		names = append(names, s.name)
	}
	fmt.Fprintf(out, "machine  %v\n", r.machine)
	fmt.Fprintf(out, "method   %s; %d rounds of %v for each row and server, interleaved (%s, again and again)\n",
		where, p.rounds, p.duration, strings.Join(names, ", "))
	fmt.Fprintf(out, "shown    median of the rounds (least-greatest); a ratio is %s / other, taken within each round\n\n", names[0])

	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	r.head(w)
	r.generatorRows(w)
	for _, row := range p.rows {
		r.row(w, row)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, note := range r.notes() {
		fmt.Fprintf(out, "note     %s\n", note)
	}
	return nil
}

func (r *results) head(w io.Writer) {
	fmt.Fprint(w, "work\tmeasure")
	for i, s := range r.servers {
		fmt.Fprintf(w, "\t%s", s.name)
		if i > 0 {
			fmt.Fprint(w, "\tratio")
		}
	}
	fmt.Fprintln(w)
}

func (r *results) row(w io.Writer, row workload) {
	title := row.title
	for _, m := range measuresOf(row) {
		fmt.Fprintf(w, "%s\t%s", title, m.name)
		title = "" // once is enough
		ours := r.values(row, r.servers[0], m)
		for i, s := range r.servers {
			values := r.values(row, s, m)
			if len(values) == 0 {
				fmt.Fprint(w, "\t-\t-")
				continue
			}
			fmt.Fprintf(w, "\t%s", show(spreadOf(values), m.format))
			if i > 0 {
				fmt.Fprintf(w, "\t%s", show(ratioOf(ours, values), ratio))
			}
		}
		fmt.Fprintln(w)
	}
}

func (r *results) values(row workload, s *server, m measure) (values []float64) {
	for _, result := range r.measured[cell{row.key, s.name}] {
		values = append(values, m.value(result))
	}
	return values
}

func (r *results) generatorRows(w io.Writer) {
	if len(r.generator) == 0 {
		return
	}
	line := func(title, name string, value func(generatorResult) float64, format func(float64) string) {
		var values []float64
		for _, g := range r.generator {
			values = append(values, value(g))
		}
		fmt.Fprintf(w, "%s\t%s\t%s", title, name, show(spreadOf(values), format))
		fmt.Fprint(w, strings.Repeat("\t-\t-", len(r.servers)-1), "\n")
	}
	line("generator, single IDs", "ns/ID", func(g generatorResult) float64 { return g.SingleNS }, nanoseconds)
	line("", "allocations", func(g generatorResult) float64 { return float64(g.SingleAllocs) }, thousands)
	line(fmt.Sprintf("generator, batches of %d", batch), "ns/ID",
		func(g generatorResult) float64 { return g.BatchNS }, nanoseconds)
	line("", "allocations", func(g generatorResult) float64 { return float64(g.BatchAllocs) }, thousands)
}

func (r *results) notes() []string {
	notes := []string{
		"each connection sends one request after another; pipelined: it sends 64 together, then awaits their answers",
		"rates count both halves of the work, the server's and the load generator's, because they share a core; for times, a ratio below 1 is better",
		fmt.Sprintf("every answer is checked: number, form and, for IDs, strict increase on its connection; "+
			"of batches, one in %d ID by ID and the others at both ends", sampleEvery),
	}
	if len(r.generator) > 0 {
		notes = append(notes, fmt.Sprintf("generator: in process, without a socket, with the daemon's clock and %d leases; in batches the clock is moved on by %v "+
			"for each, since the real time would be too short for that many IDs", len(heldLeases(0)), batchStep))
	}
	if r.plan.rounds < 5 || r.plan.duration < time.Second {
		notes = append(notes, "few or short rounds: these figures show that all works, and are not to be quoted")
	}
	return append(notes, r.remarks...)
}

// show gives the median, and the least and greatest where there are several.
func show(s spread, format func(float64) string) string {
	return fmt.Sprintf("%s (%s-%s)", format(s.median), format(s.least), format(s.greatest))
}

func ratio(v float64) string { return fmt.Sprintf("%.2f", v) }

func nanoseconds(v float64) string { return fmt.Sprintf("%.2f", v) }

func microseconds(v float64) string { return fmt.Sprintf("%.1f", v/1000) }

// thousands groups the digits.
func thousands(v float64) string {
	digits := fmt.Sprintf("%.0f", v)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
