//go:build linux

package ids

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/bench/report"
	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

const generatorKey = "generator"

// batchStep is how much the generator's clock is moved on for each batch: in
// process the real time would be too short for that many IDs.
const batchStep = 25 * time.Microsecond

// generatorMicros are ways to ask the generator.
var generatorMicros = []micro{
	{"generator, single IDs", "ns/ID", report.Nanoseconds, 1, 40, asking{count: 1}.run},
	{"generator, single IDs in bursts of 64", "ns/ID", report.Nanoseconds, 1, 40, asking{count: 1, burst: 64}.run},
	{"generator, batches of 1000", "ns/ID", report.Nanoseconds, 1000, 2, asking{count: 1000, step: batchStep}.run},
}

// asking is a way to ask the generator.
type asking struct {
	count int64         // IDs for each call
	burst int           // calls for each reading of the clock; 0: each call reads it
	step  time.Duration // the gain of the clock with each reading
}

func generatorRow() row {
	return inProcessRow(generatorKey, "the generator in process, without a socket: time and allocations per ID",
		fmt.Sprintf("in process, each ID written out into a slice, with the daemon's clock and %d leases; the clock is read once for each call, or for each burst, as the daemon does; "+
			"in batches it is moved on by %v for each, since the real time would be too short for that many IDs", generatorLeases, batchStep))
}

// run fails if IDs do not increase.
func (g asking) run() (testing.BenchmarkResult, error) {
	clk := g.clock()
	gen := generator.New(generator.Options{
		Config: generator.Config{
			MaxThroughput: generatorLeases * leaseIDs, Fallback: generator.FallbackNone, MaxBackwardMS: 5000, Spread: true,
		},
		Timeline: snowflake.DefaultTimeline(), Clock: clk, Mark: new(memoryMark),
		Rand: rand.New(rand.NewPCG(1, 2)),
	})
	defer gen.Stop()
	gen.Update(heldLeases(clk.NowNS()/int64(time.Millisecond)), nil, nil)

	var failed error
	request := generator.Request{Count: g.count, Timeout: time.Second}
	result := testing.Benchmark(func(b *testing.B) {
		ranges := make([]generator.Range, 0, 64)
		ids := make([]snowflake.ID, 0, g.count)
		var last snowflake.ID
		var reading generator.Reading // zero: the clock is read for the call
		for i := 0; b.Loop(); i++ {
			if g.burst > 0 && i%g.burst == 0 {
				reading = gen.Read()
			}
			var pending *generator.Pending
			var err error
			ranges, pending, err = gen.Start(reading, request, ranges[:0])
			if pending != nil {
				ranges, err = pending.Wait(context.Background())
			}
			if err != nil {
				failed = err
				return
			}
			if ranges[0].Start <= last {
				failed = errors.New("generator: an ID is not above the one before it")
				return
			}
			ids = expand(ids[:0], ranges)
			last = ids[g.count-1]
		}
	})
	return result, failed
}

// clock is the daemon's own, unless it has to be moved on.
func (g asking) clock() generator.Clock {
	believed := clock.NewBelieved(clock.System{}, clock.Config{MaxForward: time.Second, Hold: time.Minute})
	if g.step == 0 {
		return believed
	}
	return &movedClock{real: believed, step: int64(g.step)}
}

// expand writes out each ID: the generator hands out ranges.
func expand(ids []snowflake.ID, ranges []generator.Range) []snowflake.ID {
	for _, r := range ranges {
		for id := r.Start; id < r.Start+snowflake.ID(r.Count); id++ {
			ids = append(ids, id)
		}
	}
	return ids
}

// generatorLeases is the most that one acquire gets.
const generatorLeases = 256

// heldLeases are leases of the default layout.
func heldLeases(nowMS int64) []lease.Lease {
	const year = 365 * 24 * time.Hour
	timeline := snowflake.DefaultTimeline()
	held := make([]lease.Lease, generatorLeases)
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
