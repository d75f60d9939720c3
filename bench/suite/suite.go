// Package suite runs a set of benchmarks: rows of work in interleaved rounds, then a table of
// figures, one of targets with what became of them, and notes.
//
// A round measures row after row, and within a row every subject, one right after the other. A
// ratio is taken within a round, so that what disturbs the machine for longer than a few seconds
// falls on both of its sides. Shown are medians of the rounds, with the least and the greatest.
package suite

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/report"
)

// Suite is what one command measures.
type Suite struct {
	Name, About string
	Defaults    Plan
	Flags       func(*flag.FlagSet) // of its own; may be nil
	// Open starts the subjects, and lists in the run's Absent the ones it cannot start.
	Open func(context.Context, *Run) error
	Rows []Row
	// Subjects are the columns of the table. A ratio compares the first one to another, or, with
	// OverFirst, another to the first.
	Subjects  []string
	OverFirst bool
	// Table prints the figures instead; nil: as report does.
	Table func(io.Writer, *Run) error
}

// Row is one kind of work.
type Row struct {
	Words []string // what -only calls it, and its kind where there are several; as many in all rows
	Help  string
	// Figures are its lines in the table, Targets its promises.
	Figures []report.Figure
	Targets []report.Target
	Measure func(context.Context) error // called in each round
	Note    string                      // how it is measured, for below the tables
}

// Plan is what the flags of every suite ask for.
type Plan struct {
	Rounds   int
	Duration time.Duration // of one measurement
	Core     int           // -1: not pinned
	Daemon   string        // path of its program
	Dir      string        // for the files; "" = the one of temporary files
	Check    bool
	Short    bool
}

// Run is a run of a suite.
type Run struct {
	Plan
	Rows    []Row // that were asked for
	Round   int
	Samples report.Samples
	// Absent is why rows and subjects cannot be measured, by their words and names.
	Absent map[string]string
	Notes  []string

	closers []func()
}

// Add notes what this round measured.
func (r *Run) Add(row, subject, quantity string, value float64) {
	r.Samples.Add(r.Round, report.Series{Row: row, Subject: subject, Quantity: quantity}, value)
}

// Defer has f called at the end, the last one first.
func (r *Run) Defer(f func()) { r.closers = append(r.closers, f) }

// Main is the whole of the suite's command.
func (s *Suite) Main(ctx context.Context, args []string) error {
	r, err := s.Parse(args, os.Stderr)
	if err != nil {
		return err
	}
	if err := process.Pin(r.Core); err != nil {
		return err
	}
	return s.Run(ctx, r, os.Stdout, os.Stderr)
}

// Parse reads the flags.
func (s *Suite) Parse(args []string, stderr io.Writer) (*Run, error) {
	r := &Run{Plan: s.Defaults, Absent: map[string]string{}}
	only := ""
	flags := flag.NewFlagSet(s.Name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&r.Rounds, "rounds", r.Rounds, "`N` rounds; each measures everything once")
	flags.DurationVar(&r.Duration, "duration", r.Duration, "`time` for each measurement")
	flags.IntVar(&r.Core, "core", r.Core, "`core` that servers and clients share; -1 = not pinned")
	flags.StringVar(&r.Daemon, "daemon", filepath.Join("bin", "kazahanad"), "`path` of the daemon, as make build leaves it")
	flags.StringVar(&r.Dir, "dir", "", "`directory` of the files (default: that of temporary files)")
	flags.StringVar(&only, "only", "", "measure these `rows`, separated by commas (default all)")
	flags.BoolVar(&r.Check, "check", false, "exit with 1 if any target is missed by more than its margin")
	flags.BoolVar(&r.Short, "short", false, "few short rounds, unless they are given: shows that all starts and answers rightly, figures are rough")
	if s.Flags != nil {
		s.Flags(flags)
	}
	flags.Usage = func() {
		fmt.Fprintf(stderr, "Usage: bench %s [flags]\n\n%s\nRows, for -only:\n%s\nFlags:\n", s.Name, s.About, s.describe())
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("%q is no flag; see -h", flags.Arg(0))
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if r.Short && !given["rounds"] {
		r.Rounds = 1
	}
	if r.Short && !given["duration"] {
		r.Duration = 200 * time.Millisecond
	}
	if r.Rounds < 1 || r.Duration < 10*time.Millisecond {
		return nil, errors.New("needs at least -rounds 1 and -duration 10ms")
	}
	var errs [2]error
	r.Daemon, errs[0] = filepath.Abs(r.Daemon)
	r.Rows, errs[1] = s.choose(only)
	return r, errors.Join(errs[:]...)
}

func (s *Suite) describe() string {
	var b strings.Builder
	shown := map[string]bool{}
	for _, r := range s.Rows {
		for i, word := range r.Words {
			if !shown[word] {
				fmt.Fprintf(&b, "  %-10s  %s\n", word, []string{r.Help, ""}[min(i, 1)])
			}
			shown[word] = true
		}
	}
	return b.String()
}

// choose understands -only: words separated by commas, "" for everything. A row must have one
// of each kind of words that is named.
func (s *Suite) choose(only string) ([]Row, error) {
	named := map[int][]string{} // by their place in Row.Words
	for word := range strings.SplitSeq(only, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		place := -1
		for _, r := range s.Rows {
			place = max(place, slices.Index(r.Words, word))
		}
		if place < 0 {
			return nil, fmt.Errorf("-only: there is no row %q; see -h", word)
		}
		named[place] = append(named[place], word)
	}
	return slices.DeleteFunc(slices.Clone(s.Rows), func(r Row) bool {
		for place, words := range named {
			if !slices.Contains(words, r.Words[place]) {
				return true
			}
		}
		return false
	}), nil
}

// Run carries the plan out and prints the tables. In all cases it leaves no process and no file
// behind. Missed targets are an error too, with -check.
func (s *Suite) Run(ctx context.Context, r *Run, out, progress io.Writer) (err error) {
	if _, err := os.Stat(r.Daemon); err != nil {
		return fmt.Errorf("there is no daemon to measure (make build builds it): %w", err)
	}
	machine := describeMachine()
	if r.Dir, err = os.MkdirTemp(r.Dir, "kz-bench-"); err != nil {
		return err
	}
	r.Defer(func() { _ = os.RemoveAll(r.Dir) })
	if err := os.Chmod(r.Dir, 0o711); err != nil { // PostgreSQL has a user of its own
		return err
	}
	defer func() {
		for _, end := range slices.Backward(r.closers) {
			end()
		}
	}()
	if err := s.Open(ctx, r); err != nil {
		return err
	}
	for r.Round = range r.Rounds {
		fmt.Fprintf(progress, "bench %s: round %d of %d:", s.Name, r.Round+1, r.Rounds)
		for _, row := range r.Rows {
			if r.why(row.Words...) != "" {
				continue
			}
			fmt.Fprintf(progress, " %s", strings.Join(row.Words, "/"))
			if err := row.Measure(ctx); err != nil {
				fmt.Fprintln(progress)
				return fmt.Errorf("%s: %w", strings.Join(row.Words, ", "), err)
			}
		}
		fmt.Fprintln(progress)
	}
	fmt.Fprintf(out, "machine  %s\n", machine)
	return s.print(out, r)
}

// why is why one of them is absent, or "".
func (r *Run) why(names ...string) (why string) {
	for _, name := range names {
		why = cmp.Or(why, r.Absent[name])
	}
	return why
}

// Verdicts judges the targets of the rows that were asked for.
func (r *Run) Verdicts() (verdicts []report.Verdict) {
	for _, row := range r.Rows {
		for _, t := range row.Targets {
			verdicts = append(verdicts, t.Judge(&r.Samples, r.why(append(slices.Clone(row.Words), t.Of.Subject, t.To.Subject)...)))
		}
	}
	return verdicts
}

func (s *Suite) print(out io.Writer, r *Run) error {
	where := "not pinned"
	if r.Core >= 0 {
		where = fmt.Sprintf("all processes pinned to core %d, so that rates count the work of both sides", r.Core)
	}
	ratio := s.Subjects[0] + " / other"
	if s.OverFirst {
		ratio = "other / " + s.Subjects[0]
	}
	fmt.Fprintf(out, "method   %s; %d rounds of %v for each measurement, interleaved\n", where, r.Rounds, r.Duration)
	fmt.Fprintf(out, "shown    median of the rounds (least-greatest); a ratio is %s, the median of the ratios within each round\n\n", ratio)
	table := s.Table
	if table == nil {
		table = func(out io.Writer, r *Run) error {
			var figures []report.Figure
			for _, row := range r.Rows {
				if r.why(row.Words...) == "" {
					figures = append(figures, row.Figures...)
				}
			}
			return report.PrintFigures(out, &r.Samples, s.Subjects, s.OverFirst, figures)
		}
	}
	if err := table(out, r); err != nil {
		return err
	}
	fmt.Fprintln(out)
	verdicts := r.Verdicts()
	if err := report.PrintVerdicts(out, verdicts); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, note := range r.notes() {
		fmt.Fprintf(out, "note     %s\n", note)
	}
	if !r.Check {
		return nil
	}
	var missed []error
	for _, v := range verdicts {
		if v.Misses() {
			missed = append(missed, fmt.Errorf("  %s: %s: %v", v.Target.Work, v.Target.Criterion, v))
		}
	}
	if len(missed) == 0 {
		return nil
	}
	return fmt.Errorf("%d targets are missed by more than their margins:\n%w", len(missed), errors.Join(missed...))
}

func (r *Run) notes() []string {
	notes := r.Notes
	for _, row := range r.Rows {
		if row.Note != "" {
			notes = append(notes, row.Words[0]+": "+row.Note)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Absent)) {
		notes = append(notes, fmt.Sprintf("%s: not measured: %s", name, r.Absent[name]))
	}
	if r.Short {
		notes = append(notes, "few or short rounds: these figures show that all works, and are not to be quoted")
	}
	return notes
}
