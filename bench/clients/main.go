//go:build linux

// Package clients measures the clients of all languages, each beside its
// language's own UUIDs and a bare round trip over a Unix socket, and holds them
// against their aims. Each language brings its own program for that, with a daemon
// of its own; they take turns, round by round, on one core.
package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/kazahana/kazahana/bench/suite"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/report"
)

// Run is the suite.
func Run(ctx context.Context, args []string) error {
	p := suite.Plan{Rounds: 9, Duration: 200 * time.Millisecond}
	if err := p.Parse("clients", "The clients of all languages, each beside its language's own UUIDs and a bare round trip.\n", args, os.Stderr, nil); err != nil {
		return err
	}
	return run(ctx, p, os.Stdout)
}

// language is a client's language, and the program that measures it.
type language struct {
	name    string
	command []string
}

// languages builds what has to be built.
func languages(ctx context.Context, dir string) ([]language, error) {
	python, err := output(ctx, "clients/python/scripts/test", "interpreter")
	if err != nil {
		return nil, err
	}
	if _, err := output(ctx, "clients/node/scripts/test", "build"); err != nil {
		return nil, err
	}
	classes, err := output(ctx, "clients/java/scripts/test", "build")
	if err != nil {
		return nil, err
	}
	goBench := filepath.Join(dir, "bench-go")
	if _, err := output(ctx, "go", "build", "-C", "clients/go/programs", "-o", goBench, "./bench"); err != nil {
		return nil, err
	}
	return []language{
		{inPython, []string{python, "clients/python/bench.py", "--rounds", "1", "--json"}},
		{inNode, []string{"node", "clients/node/bench.mjs", "--rounds", "1", "--json"}},
		{inGo, []string{goBench}},
		{inJava, []string{"java", "-cp", classes, "clients/java/Bench.java"}},
	}, nil
}

// output runs a program to its end, and returns the last line that it prints.
func output(ctx context.Context, program string, args ...string) (string, error) {
	var errs bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", program, strings.Join(args, " "), err, out, errs.Bytes())
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], nil
}

func run(ctx context.Context, p suite.Plan, out io.Writer) error {
	dir, err := p.Begin()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	all, err := languages(ctx, dir)
	if err != nil {
		return err
	}
	var results report.Samples
	titles := map[string][]string{} // the rows of each language, in its order
	launch := process.Launcher{Core: p.Core}
	for round := range p.Rounds {
		for _, l := range all {
			rows, err := measure(ctx, launch, l, dir, p)
			if err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
			for _, r := range rows {
				if round == 0 {
					titles[l.name] = append(titles[l.name], r.Row)
				}
				results.Add(round, report.Series{Row: r.Row, Subject: l.name, Quantity: rate}, r.PerSecond)
				results.Add(round, report.Series{Row: r.Row, Subject: l.name, Quantity: cost}, 1e9/r.PerSecond)
				results.Add(round, report.Series{Row: r.Row, Subject: l.name, Quantity: p50}, 1e3*r.P50)
				results.Add(round, report.Series{Row: r.Row, Subject: l.name, Quantity: p99}, 1e3*r.P99)
			}
		}
	}
	where := fmt.Sprintf("clients, daemon and echo server pinned to core %d", p.Core)
	if p.Core < 0 {
		where = "not pinned"
	}
	fmt.Fprintf(out, "method   %s; %d rounds of %v for each row, the languages in turn\n", where, p.Rounds, p.Duration)
	fmt.Fprint(out, "shown    medians of the rounds; a ratio is the median of the ratios within each round\n\n")
	if err := printFigures(out, &results, all, titles); err != nil {
		return err
	}
	return judge(out, &results, p)
}

// row is what the programs print for each of theirs.
type row struct {
	Row       string  `json:"row"`
	PerSecond float64 `json:"per_second"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
}

// measure runs a language's program for one round.
func measure(ctx context.Context, launch process.Launcher, l language, dir string, p suite.Plan) (rows []row, err error) {
	args := slices.Concat(l.command, []string{"--daemon", p.Daemon, "--seconds", strconv.FormatFloat(p.Duration.Seconds(), 'f', -1, 64)})
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &errs, process.Environment("TMPDIR="+dir)
	// Its servers are in its process group.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := launch.Start(cmd); err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		return nil, errors.Join(context.Cause(ctx), fmt.Errorf("%w\n%s", err, errs.Bytes()))
	}
	return rows, json.Unmarshal(out.Bytes(), &rows)
}

const roundLimit = 5 * time.Minute

func printFigures(out io.Writer, s *report.Samples, all []language, titles map[string][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "client\twork\tIDs/s\tp50 µs\tp99 µs\tx echo\tx uuid4\t")
	for _, l := range all {
		for _, title := range titles[l.name] {
			figure := func(quantity string, format func(float64) string) string {
				spread, _ := s.Spread(report.Series{Row: title, Subject: l.name, Quantity: quantity})
				return format(spread.Median)
			}
			against := func(other string) string {
				spread, _ := s.Ratio(report.Series{Row: title, Subject: l.name, Quantity: rate}, report.Series{Row: other, Subject: l.name, Quantity: rate})
				return report.Ratio(spread.Median)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", l.name, title, figure(rate, report.Whole),
				figure(p50, fineMicroseconds), figure(p99, fineMicroseconds), against(echo), against(uuidOf(l.name)))
		}
	}
	return w.Flush()
}

// fineMicroseconds shows what takes less than one.
func fineMicroseconds(ns float64) string { return fmt.Sprintf("%.2f", ns/1e3) }
