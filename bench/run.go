//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// plan is what the command line asks for.
type plan struct {
	rounds    int
	duration  time.Duration // of one measurement
	rows      []workload
	generator bool
	core      int
	daemon    string
}

const (
	warmup = 100 * time.Millisecond
	// patience is how much longer than planned one measurement may take.
	patience = 10 * time.Second
	// maxSocketPath is what a Unix socket's address holds.
	maxSocketPath = 107
)

func parsePlan(args []string) (p plan, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&p.rounds, "rounds", 5, "rounds; each measures every row on every server once")
	flags.DurationVar(&p.duration, "duration", 2*time.Second, "time for each measurement")
	flags.IntVar(&p.core, "core", 0, "core that servers and load generator share; -1 = not pinned")
	flags.StringVar(&p.daemon, "daemon", "bin/kazahanad", "the daemon's binary, as make build leaves it")
	only := flags.String("only", "", "rows, separated by commas: "+strings.Join(rowKeys(), ", "))
	short := flags.Bool("short", false, "3 rounds of 200ms, unless they are given: shows that all works, figures are rough")
	if err := flags.Parse(args); err != nil {
		return p, err
	}
	if flags.NArg() > 0 {
		return p, fmt.Errorf("%q is no sub-mode; see -h", flags.Arg(0))
	}
	if *short {
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
	p.rows, p.generator, err = selectRows(*only)
	return p, err
}

// generatorTime is for each of the generator's two benchmarks; each takes about
// twice as long, because it works its way up to it.
func (p plan) generatorTime() time.Duration { return p.duration / 4 }

// expected is how long the run takes with so many servers.
func (p plan) expected(servers int) time.Duration {
	const processes = 30 * time.Millisecond
	round := time.Duration(len(p.rows)*servers) * (warmup + p.duration + processes)
	if p.generator {
		round += 4 * p.generatorTime()
	}
	return time.Duration(p.rounds) * round
}

// run carries the plan out and prints the table. Whatever happens, it leaves no
// process and no file behind.
func run(ctx context.Context, p plan, out, progress io.Writer) (err error) {
	machine := describeMachine()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if _, err := os.Stat(p.daemon); err != nil {
		return fmt.Errorf("there is no daemon to measure (make build builds it): %w", err)
	}
	if p.daemon, err = filepath.Abs(p.daemon); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "kazahana-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if longest := filepath.Join(dir, "kazahanad.sock"); len(longest) > maxSocketPath {
		return fmt.Errorf("%s is too long for the path of a socket: set TMPDIR to a shorter one", longest)
	}
	l := launcher{core: p.core, self: self}
	servers, err := startServers(ctx, l, p.daemon, dir)
	defer func() {
		for _, s := range servers {
			s.service.stop()
		}
	}()
	if err != nil {
		return interrupted(ctx, err)
	}
	expected := p.expected(len(servers))
	fmt.Fprintf(progress, "bench: %d rounds, about %v\n", p.rounds, expected.Round(time.Second))
	ctx, cancel := context.WithTimeoutCause(ctx, 2*expected+time.Minute, errors.New("the run took far longer than planned"))
	defer cancel()

	r := &results{plan: p, machine: machine, servers: servers, measured: map[cell][]loadResult{}}
	for round := range p.rounds {
		fmt.Fprintf(progress, "bench: round %d of %d\n", round+1, p.rounds)
		if err := r.round(ctx, l); err != nil {
			return interrupted(ctx, err)
		}
	}
	for _, s := range servers {
		remarks, err := s.finish(ctx)
		if err != nil {
			return interrupted(ctx, err)
		}
		r.remarks = append(r.remarks, remarks...)
	}
	return r.print(out)
}

// interrupted prefers the reason why everything had to end.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// cell is a row on a server.
type cell struct{ row, server string }

// results are what all rounds measured.
type results struct {
	plan      plan
	machine   machine
	servers   []*server
	measured  map[cell][]loadResult // one for each round
	generator []generatorResult     // one for each round
	remarks   []string
}

// round measures every row on every server once.
func (r *results) round(ctx context.Context, l launcher) error {
	if r.plan.generator {
		var g generatorResult
		err := l.ask(ctx, 8*r.plan.generatorTime()+patience, &g, "generator", "-duration", r.plan.generatorTime().String())
		if err != nil {
			return fmt.Errorf("the generator in process: %w", err)
		}
		r.generator = append(r.generator, g)
	}
	for _, row := range r.plan.rows {
		for _, s := range r.servers {
			socket := s.socket(row)
			if socket == "" {
				continue
			}
			o := loadOptions{
				Socket: socket, Dialect: s.dialect, Count: row.count, Connections: row.connections, Depth: row.depth,
				Warmup: warmup, Duration: r.plan.duration,
			}
			var result loadResult
			if err := l.ask(ctx, o.Warmup+o.Duration+patience, &result, o.arguments()...); err != nil {
				return fmt.Errorf("%s, %s: %w", s.name, row.title, errors.Join(err, s.service.failure()))
			}
			c := cell{row.key, s.name}
			r.measured[c] = append(r.measured[c], result)
		}
	}
	return nil
}
