// Package ids measures the daemon beside other makers of IDs.
//
// Every server is a process of its own, and so is the load generator, which is the same for all.
// All are pinned to one core: on few cores, unpinned round trips vary several-fold with where the
// scheduler puts the two. Rates are therefore those of one core that does both halves of the
// work. Rows that need other settings start daemons of their own and stop them at once.
package ids

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/bench/suite"
)

// Parts are what this program does in processes of their own, by the word that begins their
// command line.
var Parts = map[string]func(args []string) error{
	"load":    part(loadMain),
	"hold":    part(holdMain),
	"echo":    echoMain,
	greedyKey: part(greedyMain),
}

// part is a process that gets its options as JSON, in one argument.
func part[T any](run func(T) error) func(args []string) error {
	return func(args []string) error {
		var o T
		if err := json.Unmarshal([]byte(strings.Join(args, " ")), &o); err != nil {
			return err
		}
		return run(o)
	}
}

// arguments is the command line of a part.
func arguments(name string, options any) []string {
	b, err := json.Marshal(options)
	if err != nil {
		panic(err) // every option can be encoded
	}
	return []string{name, string(b)}
}

// bench is a run.
type bench struct {
	*suite.Run
	suite   *suite.Suite
	before  string    // path of another version of the daemon; "": none
	main    *daemon   // measured beside the references
	servers []*server // with it, in the order of the columns
}

const about = `Measures the daemon beside what it is compared with. All servers run in a
temporary directory on Unix sockets, and are stopped at the end. Those that this
machine does not have leave their column empty; a note says how to get them.

Exit code: 0 when everything ran, whatever the verdicts; 1 when something did
not start, answered wrongly, or was interrupted; with -check also when a target
is missed by more than its margin.
`

// Run is the command of the suite.
func Run(ctx context.Context, args []string) error { return newBench().suite.Main(ctx, args) }

func newBench() *bench {
	b := &bench{suite: &suite.Suite{Name: "ids", About: about, Defaults: suite.Plan{Rounds: 5, Duration: 2 * time.Second}}}
	b.suite.Flags = func(flags *flag.FlagSet) {
		flags.StringVar(&b.before, "before", "", "measure another version of the daemon beside this one: its `path`")
	}
	b.suite.Open = b.open
	b.suite.Rows = []suite.Row{b.librariesRow()}
	for _, w := range workloads {
		b.suite.Rows = append(b.suite.Rows, b.socketRow(w))
	}
	// The last one looks at what the others have left behind.
	b.suite.Rows = append(b.suite.Rows, b.greedyRow(), b.memoryRow())
	return b
}

// open starts the daemon and the references that there are.
func (b *bench) open(ctx context.Context, r *suite.Run) error {
	b.Run = r
	b.suite.Subjects = []string{kazahanad}
	d, err := b.startDaemon(ctx, b.Daemon, kazahanad, throughput)
	if err != nil {
		return err
	}
	b.main = d
	b.servers = append(b.servers, d.server(kazahanad))
	b.Notes = append(b.Notes,
		fmt.Sprintf("kazahanad: SQLite provider with %s, max_throughput_per_ms %d, else as shipped", wideLayout, throughput),
		"each connection sends one request after another; pipelined: it sends 64 together, then awaits their answers",
		"every answer is checked: number, form and, for IDs, strict increase on its connection; "+
			"of the daemon's batches, one in 64 ID by ID and the others at both ends")
	for _, reference := range b.references() {
		b.suite.Subjects = append(b.suite.Subjects, reference.name)
		s, err := reference.start(ctx, b)
		if err != nil {
			return fmt.Errorf("%s: %w", reference.name, err)
		}
		if s != nil {
			b.servers = append(b.servers, s)
		}
	}
	return nil
}

// promise is a target about the figure: the daemon's value, or its ratio to another series.
func promise(f report.Figure, criterion string, to report.Series, bound float64, atMost bool) report.Target {
	t := report.Target{
		Work: f.Title, Criterion: criterion, Of: report.Series{Row: f.Row, Subject: kazahanad, Quantity: f.Quantity}, To: to,
		Bound: bound, AtMost: atMost, Format: f.Format,
	}
	if to != (report.Series{}) {
		t.Format = report.Ratio
	}
	return t
}
