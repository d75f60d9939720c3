package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

const (
	// throughput is what daemon and generator are given to issue per
	// millisecond: the most that one acquire gets from the SQLite provider, 256
	// leases of 256 IDs. It is more than one core can send, so that leases are
	// not what is measured.
	throughput = 65_536
	batch      = 1000
	// batchStep is how much the generator's clock is moved on for each batch:
	// in process the real time would be too short for that many IDs.
	batchStep = 25 * time.Microsecond
)

// generatorResult is what the sub-mode generator prints, as JSON.
type generatorResult struct {
	SingleNS     float64 `json:"single_ns"`     // per ID
	SingleAllocs int64   `json:"single_allocs"` // per call
	BatchNS      float64 `json:"batch_ns"`      // per ID
	BatchAllocs  int64   `json:"batch_allocs"`  // per call
}

// generatorMain is the sub-mode generator: IDs without a socket, from the
// generator and the clock that the daemon has.
func generatorMain(args []string) error {
	flags := flag.NewFlagSet("generator", flag.ContinueOnError)
	duration := flags.Duration("duration", 500*time.Millisecond, "time for each of the two benchmarks")
	if err := flags.Parse(args); err != nil {
		return err
	}
	testing.Init()
	if err := flag.Set("test.benchtime", duration.String()); err != nil {
		return err
	}
	single, err := benchmarkGenerator(1, 0)
	if err != nil {
		return err
	}
	batches, err := benchmarkGenerator(batch, batchStep)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(generatorResult{
		SingleNS: perCall(single), SingleAllocs: single.AllocsPerOp(),
		BatchNS: perCall(batches) / batch, BatchAllocs: batches.AllocsPerOp(),
	})
}

func perCall(r testing.BenchmarkResult) float64 {
	return float64(r.T.Nanoseconds()) / float64(r.N)
}

func benchmarkGenerator(count int64, step time.Duration) (testing.BenchmarkResult, error) {
	clk := &movedClock{real: clock.NewBelieved(clock.System{}, clock.Config{MaxForward: time.Second, Hold: time.Minute}), step: int64(step)}
	g := generator.New(generator.Options{
		Config: generator.Config{
			MaxThroughput: throughput, Fallback: generator.FallbackNone, MaxBackwardMS: 5000, Spread: true,
		},
		Timeline: snowflake.DefaultTimeline(), Clock: clk, Mark: new(memoryMark),
		Rand: rand.New(rand.NewPCG(1, 2)),
	})
	defer g.Stop()
	g.Update(heldLeases(clk.NowNS()/int64(time.Millisecond)), nil, nil)

	var failed error
	request := generator.Request{Count: count, Timeout: time.Second}
	result := testing.Benchmark(func(b *testing.B) {
		ranges := make([]generator.Range, 0, 64)
		var last snowflake.ID
		for b.Loop() {
			var err error
			ranges, err = g.Next(context.Background(), request, ranges[:0])
			if err != nil {
				failed = err
				return
			}
			if ranges[0].Start <= last {
				failed = errors.New("generator: an ID is not above the one before it")
				return
			}
			end := ranges[len(ranges)-1]
			last = end.Start + snowflake.ID(end.Count) - 1
		}
	})
	return result, failed
}

// heldLeases are as many leases of the default layout as throughput needs.
func heldLeases(nowMS int64) []lease.Lease {
	const year = 365 * 24 * time.Hour
	timeline := snowflake.DefaultTimeline()
	held := make([]lease.Lease, throughput>>snowflake.DefaultBitSeq)
	for i := range held {
		held[i] = lease.Lease{
			ID: int64(i), Created: nowMS, Expired: nowMS + year.Milliseconds(), ReservedUntil: nowMS + year.Milliseconds(),
			Secret: "bench", EpochMS: timeline.EpochMS, BitReserve: snowflake.BitReserve,
			BitTS: timeline.BitTS, BitID: snowflake.DefaultBitID, BitSeq: snowflake.DefaultBitSeq,
		}
	}
	return held
}

// movedClock is read as the daemon's clock is, and gains step at each reading.
type movedClock struct {
	real        *clock.Believed
	step, moved int64
}

func (c *movedClock) NowNS() int64 {
	c.moved += c.step
	return c.real.NowNS() + c.moved
}

// memoryMark costs what the daemon's memory-mapped mark does: one atomic store.
type memoryMark struct{ ms atomic.Int64 }

func (m *memoryMark) RaiseMark(ms int64) { m.ms.Store(ms) }
