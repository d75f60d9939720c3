//go:build linux

// Package leases measures a cold-start storm: thousands of hosts that ask a lease
// server for a machine ID at the same moment, in front of each store.
//
// It starts the lease server as a process of its own, on an empty store, and has
// every client send one POST /lease on a connection of its own when all are told
// to. A round is over when all have their answer. The time of a client runs from the common start to its whole answer.
//
// Load and server share the machine, so what is shown is less than the server
// could do alone.
package leases

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/kazahana/kazahana/bench/process"
	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/bench/suite"
)

const (
	// fewClients are enough for a short run.
	fewClients = 100
)

// Quantities, and the promises about two of them, on SQLite.
const (
	perSecond = "acquires/s"
	p50       = "p50, ms"
	p99       = "p99, ms"
	slowest   = "slowest, ms"
	commits   = "commits"

	wantPerSecond = 3000
	wantP99       = 2 * time.Second
)

// mode is how the clients connect.
type mode struct {
	name  string
	fresh bool // connect within the measured time
}

var modes = []mode{{"keep-alive", false}, {"new connections", true}}

// bench is a run.
type bench struct {
	suite.Plan
	clients int
	launch  process.Launcher
	samples report.Samples
}

// Run is the suite.
func Run(ctx context.Context, args []string) error {
	b := &bench{Plan: suite.Plan{Rounds: 3, Duration: time.Second, Core: -1}}
	err := b.Parse("leases", "A storm of acquires; each round has empty stores, on a real disk if -dir says so.\n", args, os.Stderr, func(flags *flag.FlagSet) {
		flags.IntVar(&b.clients, "clients", 4000, "how many clients ask at once, up to 8192, the machine IDs of a pool")
	})
	if err != nil {
		return err
	}
	if b.Short {
		b.clients = min(b.clients, fewClients)
	}
	b.launch.Core = b.Core
	var subjects, notes []string
	measured := slices.DeleteFunc(slices.Clone(stores), func(s store) bool {
		subjects = append(subjects, s.name)
		missing := slices.IndexFunc(s.programs, func(program string) bool { return find(program) == "" })
		if missing >= 0 {
			notes = append(notes, fmt.Sprintf("%s: not measured: there is no %s", s.name, s.programs[missing]))
		}
		return missing >= 0
	})
	for i := range b.Rounds {
		for _, s := range measured {
			for _, m := range modes {
				if err := b.round(ctx, i, s, m); err != nil {
					return fmt.Errorf("%s, %s, round %d: %w", s.name, m.name, i+1, err)
				}
			}
		}
	}
	fmt.Printf("method   %d clients, one acquire each; %d rounds of each kind, interleaved; no slot was granted twice\n\n", b.clients, b.Rounds)
	var figures []report.Figure
	var verdicts []report.Verdict
	for _, m := range modes {
		for _, q := range []struct {
			quantity string
			format   func(float64) string
		}{{perSecond, report.Whole}, {p50, report.Milliseconds}, {p99, report.Milliseconds}, {slowest, report.Milliseconds}, {commits, report.Whole}} {
			figures = append(figures, report.Figure{Row: m.name, Title: m.name, Quantity: q.quantity, Format: q.format})
		}
		target := report.Target{Work: m.name, Criterion: perSecond, Of: series(stores[0], m, perSecond), Bound: wantPerSecond, Format: report.Whole}
		verdicts = append(verdicts, target.Judge(&b.samples, nil))
		target = report.Target{Work: m.name, Criterion: p99, Of: series(stores[0], m, p99), Bound: float64(wantP99), AtMost: true, Format: report.Milliseconds}
		verdicts = append(verdicts, target.Judge(&b.samples, nil))
	}
	if err := report.PrintFigures(os.Stdout, &b.samples, subjects, figures); err != nil {
		return err
	}
	return b.Conclude(os.Stdout, verdicts, notes)
}

func series(s store, m mode, quantity string) report.Series {
	return report.Series{Row: m.name, Subject: s.name, Quantity: quantity}
}
