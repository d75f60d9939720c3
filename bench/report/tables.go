package report

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Figure is a line of the table of figures: a quantity of every subject.
type Figure struct {
	Row, Title string
	Quantity   string
	Format     func(float64) string
}

// PrintFigures prints the subjects side by side. Ratios are those of the first subject to the
// others, or, if overFirst, those of the others to the first.
func PrintFigures(out io.Writer, s *Samples, subjects []string, overFirst bool, figures []Figure) error {
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
		fmt.Fprintf(w, "%s\t%s", unlessSame(&title, f.Title), f.Quantity)
		for i, subject := range subjects {
			of, to := Series{f.Row, subjects[0], f.Quantity}, Series{f.Row, subject, f.Quantity}
			cell := "-"
			if spread, ok := s.Spread(to); ok {
				cell = spread.Show(f.Format)
			}
			fmt.Fprintf(w, "\t%s", cell)
			if i == 0 {
				continue
			}
			if overFirst {
				of, to = to, of
			}
			ratio := "-"
			if spread, ok := s.Ratio(of, to); ok {
				ratio = Ratio(spread.Median)
			}
			fmt.Fprintf(w, "\t%s", ratio)
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// unlessSame is the title, or "" where the line above has the same one.
func unlessSame(above *string, title string) string {
	if title == *above {
		return ""
	}
	*above = title
	return title
}

// PrintVerdicts prints a line for each target.
func PrintVerdicts(out io.Writer, verdicts []Verdict) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "work\tcriterion\ttarget\tmeasured\tverdict")
	work := ""
	for _, v := range verdicts {
		measured := "-"
		if v.Why == "" {
			measured = v.Spread.Show(v.Target.Format)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%v\n", unlessSame(&work, v.Target.Work), v.Target.Criterion, v.Target.bound(), measured, v)
	}
	return w.Flush()
}
