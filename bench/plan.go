//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"
)

// plan is what the command line asks for.
type plan struct {
	rounds   int
	duration time.Duration // of one measurement
	rows     []row
	core     int
	daemon   string
	check    bool
	short    bool
}

const usage = `Usage: bench [flags]

Measures the daemon beside what it is compared with, and prints a table of
figures and a table of targets with a verdict for each. All servers run in a
temporary directory on Unix sockets, and are stopped at the end. Those that this
machine does not have leave their column empty; a note says how to get them.

Exit code: 0 when everything ran, whatever the verdicts; 1 when something did
not start, answered wrongly, or was interrupted; with -check also when a target
is missed by more than 10%%; with -short also when one is missed that does not
depend on the machine's speed (allocations).

Rows, for -only:
%s
Flags:
`

func parsePlan(args []string, stderr io.Writer) (p plan, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&p.rounds, "rounds", 5, "`N` rounds; each measures every row on every server once")
	flags.DurationVar(&p.duration, "duration", 2*time.Second, "`time` for each measurement")
	flags.IntVar(&p.core, "core", 0, "`core` that servers and load generator share; -1 = not pinned")
	flags.StringVar(&p.daemon, "daemon", "bin/kazahanad", "`path` of the daemon's binary, as make build leaves it")
	flags.BoolVar(&p.check, "check", false, "exit with 1 if any target is missed by more than 10%")
	flags.BoolVar(&p.short, "short", false, "3 rounds of 200ms, unless they are given: shows that all starts and answers rightly, figures are rough")
	only := flags.String("only", "", "measure these `rows`, separated by commas (default all)")
	flags.Usage = func() {
		fmt.Fprintf(stderr, usage, describeRows())
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return p, err
	}
	if flags.NArg() > 0 {
		return p, fmt.Errorf("%q is no sub-mode; see -h", flags.Arg(0))
	}
	if p.short {
		given := map[string]bool{}
		flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
		if !given["rounds"] {
			p.rounds = 3
		}
		if !given["duration"] {
			p.duration = 200 * time.Millisecond
		}
	}
	if p.rounds < 1 || p.duration < 10*time.Millisecond {
		return p, errors.New("needs at least -rounds 1 and -duration 10ms")
	}
	p.rows, err = selectRows(*only)
	return p, err
}

// expected is how long the run takes with so many servers.
func (p plan) expected(servers int) (total time.Duration) {
	for _, r := range p.rows {
		total += time.Duration(p.rounds) * r.takes(p, servers)
	}
	return total
}

// has reports whether the plan has the row.
func (p plan) has(key string) bool {
	for _, r := range p.rows {
		if r.key == key {
			return true
		}
	}
	return false
}

func describeRows() string {
	var b strings.Builder
	for _, r := range allRows() {
		fmt.Fprintf(&b, "  %-10s  %s\n", r.key, r.help)
	}
	return b.String()
}
