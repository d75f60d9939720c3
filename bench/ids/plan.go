//go:build linux

package ids

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kazahana/kazahana/bench/suite"
)

// plan is what the command line asks for.
type plan struct {
	suite.Plan
	rows []row
}

const usage = `Measures the daemon beside what it is compared with, and prints a table of
figures and a table of targets with a verdict for each. All servers run in a
temporary directory on Unix sockets, and are stopped at the end. Those that this
machine does not have leave their column empty; a note says how to get them.

Exit code: 0 when everything ran, whatever the verdicts; 1 when something did
not start, answered wrongly, or was interrupted; with -check also when a target
is missed by more than 10%%.

Rows, for -only:
%s`

func parsePlan(args []string, stderr io.Writer) (p plan, err error) {
	p.Plan = suite.Plan{Rounds: 5, Duration: 2 * time.Second}
	only := ""
	err = p.Parse("ids", fmt.Sprintf(usage, describeRows()), args, stderr, func(flags *flag.FlagSet) {
		flags.StringVar(&only, "only", "", "measure these `rows`, separated by commas (default all)")
	})
	if err != nil {
		return p, err
	}
	p.rows, err = selectRows(only)
	return p, err
}

// expected is how long the run takes with so many servers.
func (p plan) expected(servers int) (total time.Duration) {
	for _, r := range p.rows {
		total += time.Duration(p.Rounds) * r.takes(p, servers)
	}
	return total
}

// has reports whether the plan has the row.
func (p plan) has(key string) bool {
	return slices.ContainsFunc(p.rows, func(r row) bool { return r.key == key })
}

func describeRows() string {
	var b strings.Builder
	for _, r := range allRows() {
		fmt.Fprintf(&b, "  %-10s  %s\n", r.key, r.help)
	}
	return b.String()
}
