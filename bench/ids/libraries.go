package ids

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	bwmarrin "github.com/bwmarrin/snowflake"
	"github.com/google/uuid"
	"github.com/sony/sonyflake/v2"

	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/bench/suite"
	"github.com/kazahana/kazahana/embed"
)

const (
	librariesKey = "libraries"
	quantityNS   = "ns/ID"
)

const (
	embedOne = "embed, NextID"
	sonyOne  = "sonyflake v2, NextID"
	uuidV7   = "google/uuid, NewV7"

	embedBatch             = 100
	sonyBits, bwmarrinBits = 16, 18
)

// timed measures calls of next, each of which makes so many IDs and returns the first.
type timed func(per int, next func() (int64, error)) error

// libraries are ways to make IDs inside a Go program. Each has so many sequence numbers in a
// millisecond that none of them waits for the next one.
var libraries = []struct {
	title string
	run   func(ctx context.Context, dir string, measure timed) error
}{
	{embedOne, func(ctx context.Context, dir string, measure timed) error {
		return embedded(ctx, dir, func(g *embed.Generator) error {
			return measure(1, func() (int64, error) { return g.NextID(ctx) })
		})
	}},
	{"embed, NextIDs(100)", func(ctx context.Context, dir string, measure timed) error {
		return embedded(ctx, dir, func(g *embed.Generator) error {
			return measure(embedBatch, func() (int64, error) {
				ids, err := g.NextIDs(ctx, embedBatch)
				if err != nil {
					return 0, err
				}
				return ids[0], nil
			})
		})
	}},
	{sonyOne, func(_ context.Context, _ string, measure timed) error {
		s, err := sonyflake.New(sonyflake.Settings{
			TimeUnit: time.Millisecond, BitsSequence: sonyBits, BitsMachineID: 14, StartTime: time.Now().Add(-time.Hour),
			MachineID: func() (int, error) { return 1, nil },
		})
		if err != nil {
			return err
		}
		return measure(1, s.NextID)
	}},
	{"bwmarrin/snowflake, Generate", func(_ context.Context, _ string, measure timed) error {
		bwmarrin.StepBits, bwmarrin.NodeBits = bwmarrinBits, 22-bwmarrinBits
		n, err := bwmarrin.NewNode(1)
		if err != nil {
			return err
		}
		return measure(1, func() (int64, error) { return int64(n.Generate()), nil })
	}},
	{uuidV7, func(_ context.Context, _ string, measure timed) error {
		calls := int64(0)
		return measure(1, func() (int64, error) {
			_, err := uuid.NewV7()
			calls++
			return calls, err
		})
	}},
}

// librariesRow has bounds for NextID of embed beside others, which keep no mark and lease nothing.
func (b *bench) librariesRow() suite.Row {
	r := suite.Row{
		Words: []string{librariesKey}, Help: "embed and other Go libraries in process: time per ID", Measure: b.measureLibraries,
		Note: fmt.Sprintf("in process, one goroutine, one call for each ID; embed with its own state, on a SQLite provider, with leases for %d IDs per millisecond; "+
			"sonyflake with a time unit of 1 ms and %d bits of sequence, bwmarrin/snowflake with %d: as shipped, they wait after 256 IDs in 10 ms and after 4,096 in 1 ms, "+
			"and embed after 256 in 1 ms", throughput, sonyBits, bwmarrinBits),
	}
	bounds := map[string]float64{sonyOne: 1.5, uuidV7: 0.5}
	for _, l := range libraries {
		r.Figures = append(r.Figures, report.Figure{Row: l.title, Title: l.title, Quantity: quantityNS, Format: report.Nanoseconds})
		if bound := bounds[l.title]; bound > 0 {
			other := report.Series{Row: l.title, Subject: kazahanad, Quantity: quantityNS}
			r.Targets = append(r.Targets, promise(r.Figures[0], "time / "+l.title, other, bound, true))
		}
	}
	return r
}

// measureLibraries measures each library for a quarter of the duration.
func (b *bench) measureLibraries(ctx context.Context) error {
	for i, l := range libraries {
		measure := func(per int, next func() (int64, error)) error {
			const together = 1000 // calls, where one costs less than reading the clock
			calls, last, began := 0, int64(0), time.Now()
			for end := began.Add(b.Duration / 4); time.Now().Before(end); calls += together {
				for range together {
					id, err := next()
					if err != nil {
						return err
					}
					if id <= last {
						return fmt.Errorf("ID %d is not above the one before it, %d", id, last)
					}
					last = id
				}
			}
			b.Add(l.title, kazahanad, quantityNS, float64(time.Since(began))/float64(calls*per))
			return nil
		}
		ended := make(chan error)
		// Not here: this goroutine is locked to its thread, and would pay for each switch.
		go func() { ended <- l.run(ctx, filepath.Join(b.Dir, fmt.Sprintf("embed%d-%d", i, b.Round)), measure) }()
		if err := <-ended; err != nil {
			return fmt.Errorf("%s: %w", l.title, err)
		}
	}
	return nil
}

// embedded opens a generator in a new directory. The callback uses it once it has its leases.
func embedded(ctx context.Context, dir string, use func(*embed.Generator) error) (err error) {
	g, err := embed.Open(ctx, embed.Config{
		StateDir: dir, Provider: "sqlite:" + dir + ".db?" + wideLayout,
		MaxThroughputPerMS: throughput, Fallback: embed.NoFallback, StartupWait: startLimit,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	if _, err := g.NextID(ctx); err != nil { // after the first lease
		return err
	}
	for end := time.Now().Add(startLimit); g.Status().Throughput < throughput; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("leases for %d of %d IDs per millisecond", g.Status().Throughput, throughput)
		}
	}
	return use(g)
}
