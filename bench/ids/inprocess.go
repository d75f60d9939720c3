//go:build linux

package ids

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/kazahana/kazahana/bench/report"
)

// micro is a benchmark without a socket.
type micro struct {
	title   string
	measure string // the unit of its time
	format  func(float64) string
	per     int64   // units in a call
	bound   float64 // target, ns per unit; 0: none
	run     func() (testing.BenchmarkResult, error)
}

// Quantities of a micro, by which the part inprocess names its results.

func (m micro) time() string        { return m.title + ", " + m.measure }
func (m micro) allocations() string { return m.title + ", allocations" }

// micros are the rows of benchmarks without a socket, by their keys.
var micros = map[string][]micro{generatorKey: generatorMicros, librariesKey: libraryMicros, rendezvousKey: rendezvousMicros}

// inProcessOptions are the options of the part inprocess.
type inProcessOptions struct {
	Row      string
	Duration time.Duration // of each benchmark
}

// inProcessRow is a row of micros.
func inProcessRow(key, help, note string) row {
	// Each benchmark takes about twice its time: it works its way up to it.
	each := func(p plan) time.Duration { return p.Duration / 4 }
	total := func(p plan) time.Duration { return time.Duration(2*len(micros[key])) * each(p) }
	r := row{
		key: key, help: help, note: note,
		takes: func(p plan, _ int) time.Duration { return total(p) },
		measure: func(ctx context.Context, b *bench) error {
			measured := map[string]float64{}
			err := b.launch.Ask(ctx, 2*total(b.plan)+patience, &measured, arguments("inprocess", inProcessOptions{key, each(b.plan)})...)
			for quantity, value := range measured {
				b.add(key, kazahanad, quantity, value)
			}
			return err
		},
	}
	for _, m := range micros[key] {
		duration := r.shows(m.title, m.time(), m.measure, m.format)
		allocations := r.shows(m.title, m.allocations(), "allocations", report.Whole)
		if m.bound > 0 {
			duration.atMost(m.bound)
			allocations.atMost(0).Certain = true
		}
	}
	return r
}

// inProcessMain is the part inprocess.
func inProcessMain(o inProcessOptions) error {
	testing.Init()
	if err := flag.Set("test.benchtime", o.Duration.String()); err != nil {
		return err
	}
	measured := map[string]float64{}
	for _, m := range micros[o.Row] {
		result, err := m.run()
		if err != nil {
			return err
		}
		measured[m.time()] = float64(result.T.Nanoseconds()) / float64(result.N) / float64(m.per)
		measured[m.allocations()] = float64(result.AllocsPerOp())
	}
	return json.NewEncoder(os.Stdout).Encode(measured)
}
