// Package suite has what all suites of the benchmarks share: their flags, and what
// becomes of their targets.
package suite

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kazahana/kazahana/bench/report"
)

// Plan is what the flags ask for that every suite understands.
type Plan struct {
	Rounds   int
	Duration time.Duration // of one measurement
	Core     int           // -1: not pinned
	Daemon   string        // path of its program
	Dir      string        // for the files; "" = that of temporary files
	Check    bool
	Short    bool
}

// shortPlan shows that everything starts and answers; its figures are rough.
var shortPlan = Plan{Rounds: 1, Duration: 200 * time.Millisecond}

// Parse reads the flags. The fields of p are the defaults; define adds flags of the
// suite, and rows describes what it measures.
func (p *Plan) Parse(name, rows string, args []string, stderr io.Writer, define func(*flag.FlagSet)) error {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&p.Rounds, "rounds", p.Rounds, "`N` rounds; each measures everything once")
	flags.DurationVar(&p.Duration, "duration", p.Duration, "`time` for each measurement")
	flags.IntVar(&p.Core, "core", p.Core, "`core` that servers and clients share; -1 = not pinned")
	flags.StringVar(&p.Daemon, "daemon", filepath.Join("bin", "kazahanad"), "`path` of the daemon, as make build leaves it")
	flags.StringVar(&p.Dir, "dir", "", "`directory` of the files (default: that of temporary files)")
	flags.BoolVar(&p.Check, "check", false, "exit with 1 if any target is missed by more than 10%")
	flags.BoolVar(&p.Short, "short", false, "few short rounds, unless they are given: shows that all starts and answers rightly, figures are rough")
	if define != nil {
		define(flags)
	}
	flags.Usage = func() {
		fmt.Fprintf(stderr, "Usage: bench %s [flags]\n\n%s\nFlags:\n", name, rows)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is no flag; see -h", flags.Arg(0))
	}
	if p.Short {
		given := map[string]bool{}
		flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
		if !given["rounds"] {
			p.Rounds = shortPlan.Rounds
		}
		if !given["duration"] {
			p.Duration = shortPlan.Duration
		}
	}
	if p.Rounds < 1 || p.Duration < 10*time.Millisecond {
		return errors.New("needs at least -rounds 1 and -duration 10ms")
	}
	path, err := filepath.Abs(p.Daemon)
	if err != nil {
		return err
	}
	p.Daemon = path
	return nil
}

// Begin makes the directory of a run, and fails without a daemon to measure. The
// caller removes the directory.
func (p Plan) Begin() (dir string, err error) {
	if _, err := os.Stat(p.Daemon); err != nil {
		return "", fmt.Errorf("there is no daemon to measure (make build builds it): %w", err)
	}
	return os.MkdirTemp(p.Dir, "kz-bench-")
}

// Conclude prints what became of the targets. Its error is that of missed targets, with
// -check.
func (p Plan) Conclude(out io.Writer, verdicts []report.Verdict, notes []string) error {
	fmt.Fprintln(out)
	if err := report.PrintVerdicts(out, verdicts); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, note := range notes {
		fmt.Fprintf(out, "note     %s\n", note)
	}
	missed := report.Missed(verdicts)
	if !p.Check || len(missed) == 0 {
		return nil
	}
	var lines []string
	for _, v := range missed {
		lines = append(lines, fmt.Sprintf("%s: %s: %v", v.Target.Work, v.Target.Criterion, v))
	}
	return fmt.Errorf("%d targets are missed by more than 10%%:\n  %s", len(missed), strings.Join(lines, "\n  "))
}
