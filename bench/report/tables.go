package report

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Figure is a line of the table of figures.
type Figure struct {
	Row, Title string
	Quantity   string
	Measure    string // what the line is headed with; Quantity if empty
	Format     func(float64) string
	Alone      bool // only the first subject can have it
	// OverFirst: a ratio is the subject's to the first, not the first's to the subject.
	OverFirst bool
}

// PrintFigures prints the subjects side by side. The first is the one that the
// others are compared with.
func PrintFigures(out io.Writer, s *Samples, subjects []string, figures []Figure) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "work\tmeasure")
	for i, subject := range subjects {
		fmt.Fprintf(w, "\t%s", subject)
		if i > 0 {
			fmt.Fprint(w, "\tratio")
		}
	}
	fmt.Fprintln(w)
	title := ""
	for _, f := range figures {
		shown := f.Title
		if shown == title {
			shown = "" // once is enough
		}
		title = f.Title
		measure := f.Measure
		if measure == "" {
			measure = f.Quantity
		}
		fmt.Fprintf(w, "%s\t%s", shown, measure)
		printSubjects(w, s, subjects, f)
		fmt.Fprintln(w)
	}
	return w.Flush()
}

func printSubjects(w io.Writer, s *Samples, subjects []string, f Figure) {
	ours := Series{f.Row, subjects[0], f.Quantity}
	for i, subject := range subjects {
		if f.Alone && i > 0 {
			break
		}
		series := Series{f.Row, subject, f.Quantity}
		cell, ratio := "-", "-"
		if spread, ok := s.Spread(series); ok {
			cell = spread.Show(f.Format)
		}
		of, to := ours, series
		if f.OverFirst {
			of, to = series, ours
		}
		if spread, ok := s.Ratio(of, to); ok {
			ratio = Ratio(spread.Median)
		}
		fmt.Fprintf(w, "\t%s", cell)
		if i > 0 {
			fmt.Fprintf(w, "\t%s", ratio)
		}
	}
}

// PrintVerdicts prints a line for each target.
func PrintVerdicts(out io.Writer, verdicts []Verdict) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "work\tcriterion\ttarget\tmeasured\tverdict")
	work := ""
	for _, v := range verdicts {
		shown := v.Target.Work
		if shown == work {
			shown = ""
		}
		work = v.Target.Work
		measured := "-"
		if v.Measured {
			measured = v.Spread.Show(v.Target.Format)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%v\n", shown, v.Target.Criterion, v.Target.bound(), measured, v)
	}
	return w.Flush()
}
