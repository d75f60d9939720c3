// Package clients measures the clients of all languages, each beside its
// language's own UUIDs and a bare round trip over a Unix socket, and holds them
// against their aims. Each language brings its own program for that, with a daemon
// of its own; they take turns, round by round, on one core.
package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/bench/suite"
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

const roundLimit = 5 * time.Minute

// language is a client's language, with the promises about it.
type language struct {
	name    string
	uuid    string  // the row of the language's own UUIDs
	dearest float64 // p50 of a single call, in bare round trips
	aims    []aim
}

// aim is about a row's rate, or its cost, or its rate's ratio to another row.
type aim struct {
	criterion, row, to string
	bound              float64
	cost               bool // at most, in nanoseconds for an ID
}

var languages = []language{
	{inPython, "uuid4", 1.5, []aim{
		{"IDs/s with prefetch / uuid.uuid4()", ahead, "uuid4", 2.5, false},
		{"IDs/s of 64 calls in a gather / one after the other", gathered, awaited, 1.5, false},
	}},
	// UUIDs from entropy that Node has gathered ahead are faster: another row has them.
	{inNode, "uuid4", 1.5, []aim{
		{"million IDs/s with prefetch", ahead, "", 3e6, false},
		{"IDs/s with prefetch / randomUUID({ disableEntropyCache: true })", ahead, "uuid4", 4, false},
	}},
	{inGo, "uuid", 1.5, []aim{{"ns for an ID with prefetch", ahead, "", 50, true}}},
	// A call changes threads there and back, a bare round trip does not.
	{inJava, "uuid4", 3, []aim{{"IDs/s with prefetch / UUID.randomUUID()", ahead, "uuid4", 2.5, false}}},
}

func (l language) series(row, quantity string) report.Series {
	return report.Series{Row: row, Subject: l.name, Quantity: quantity}
}

// targets are the promises about the client.
func (l language) targets() []report.Target {
	all := []report.Target{{
		Work: l.name, Criterion: "p50 of a single call / of a bare round trip",
		Of: l.series(single, p50), To: l.series(echo, p50), Bound: l.dearest, AtMost: true, Format: report.Ratio,
	}}
	for _, a := range l.aims {
		t := report.Target{Work: l.name, Criterion: a.criterion, Of: l.series(a.row, rate), Bound: a.bound, Format: report.Mega}
		switch {
		case a.cost:
			t.Of, t.AtMost, t.Format = l.series(a.row, cost), true, report.Nanoseconds
		case a.to != "":
			t.To, t.Format = l.series(a.to, rate), report.Ratio
		}
		all = append(all, t)
	}
	return all
}

// bench is a run.
type bench struct {
	*suite.Run
	commands map[string][]string // by language
	titles   map[string][]string // the rows of each language, in its order
}

// Run is the command of the suite.
func Run(ctx context.Context, args []string) error { return newSuite().Main(ctx, args) }

func newSuite() *suite.Suite {
	b := &bench{commands: map[string][]string{}, titles: map[string][]string{}}
	s := &suite.Suite{
		Name: "clients", About: "The clients of all languages, each beside its language's own UUIDs and a bare round trip.\n",
		Defaults: suite.Plan{Rounds: 9, Duration: 200 * time.Millisecond}, Subjects: []string{"echo or uuid"}, OverFirst: true, Table: b.print,
		Open: func(_ context.Context, r *suite.Run) error {
			b.Run = r
			r.Notes = append(r.Notes, `Node's randomUUID() takes entropy that it has gathered ahead: the row "uuid4, cached entropy"`)
			return nil
		},
	}
	for _, l := range languages {
		s.Rows = append(s.Rows, suite.Row{
			Words: []string{l.name}, Help: "the client", Targets: l.targets(),
			Measure: func(ctx context.Context) error { return b.measure(ctx, l) },
		})
	}
	return s
}

// command is the program that measures a language, which is built for the first round.
func (b *bench) command(ctx context.Context, language string) (command []string, err error) {
	if command = b.commands[language]; command != nil {
		return command, nil
	}
	switch language {
	case inPython:
		python, failed := output(ctx, "clients/python/scripts/test", "interpreter")
		command, err = []string{python, "clients/python/bench.py", "--rounds", "1", "--json"}, failed
	case inNode:
		_, err = output(ctx, "clients/node/scripts/test", "build")
		command = []string{"node", "clients/node/bench.mjs", "--rounds", "1", "--json"}
	case inGo:
		command = []string{filepath.Join(b.Dir, "bench-go")}
		_, err = output(ctx, "go", "build", "-C", "clients/go/programs", "-o", command[0], "./bench")
	case inJava:
		classes, failed := output(ctx, "clients/java/scripts/test", "build")
		command, err = []string{"java", "-cp", classes, "clients/java/Bench.java"}, failed
	}
	b.commands[language] = command
	return command, err
}

// output runs a program to its end, and returns the last line that it prints.
func output(ctx context.Context, program string, args ...string) (string, error) {
	out, err := process.Run(ctx, exec.CommandContext(ctx, program, args...))
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], err
}

// measure runs a language's program for one round.
func (b *bench) measure(ctx context.Context, l language) error {
	command, err := b.command(ctx, l.name)
	if err != nil {
		return err
	}
	command = slices.Concat(command, []string{"--daemon", b.Daemon, "--seconds", strconv.FormatFloat(b.Duration.Seconds(), 'f', -1, 64)})
	ctx, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = process.Environment("TMPDIR=" + b.Dir)
	out, err := process.Run(ctx, cmd)
	if err != nil {
		return err
	}
	var rows []struct {
		Row       string  `json:"row"`
		PerSecond float64 `json:"per_second"`
		P50       float64 `json:"p50_us"`
		P99       float64 `json:"p99_us"`
	}
	if err := json.Unmarshal(out, &rows); err != nil {
		return err
	}
	for _, r := range rows {
		if b.Round == 0 {
			b.titles[l.name] = append(b.titles[l.name], r.Row)
		}
		for quantity, value := range map[string]float64{rate: r.PerSecond, cost: 1e9 / r.PerSecond, p50: r.P50, p99: r.P99} {
			b.Add(r.Row, l.name, quantity, value)
		}
	}
	return nil
}

// print prints a line for each row, with the ratio of its rate to the echo's and UUIDs'.
func (b *bench) print(out io.Writer, r *suite.Run) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "client\twork\tIDs/s\tp50 µs\tp99 µs\tx echo\tx uuid\t")
	for _, l := range languages {
		for _, title := range b.titles[l.name] {
			fmt.Fprintf(w, "%s\t%s", l.name, title)
			for _, quantity := range []string{rate, p50, p99} {
				spread, _ := r.Samples.Spread(l.series(title, quantity))
				fmt.Fprintf(w, "\t%.*f", map[bool]int{true: 0, false: 2}[quantity == rate], spread.Median)
			}
			for _, other := range []string{echo, l.uuid} {
				spread, _ := r.Samples.Ratio(l.series(title, rate), l.series(other, rate))
				fmt.Fprintf(w, "\t%s", report.Ratio(spread.Median))
			}
			fmt.Fprintln(w, "\t")
		}
	}
	return w.Flush()
}
