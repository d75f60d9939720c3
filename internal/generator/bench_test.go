package generator

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// steppingClock moves on by step at each reading, so that no benchmark depends
// on how fast the machine is, or ever waits for a millisecond.
type steppingClock struct{ at, step int64 }

func (c *steppingClock) NowNS() int64 {
	c.at += c.step
	return c.at
}

// wallClock costs what reading the time costs.
type wallClock struct{}

func (wallClock) NowNS() int64 { return time.Now().UnixNano() }

// newBusy returns a generator with many leases of 256 IDs per millisecond.
func newBusy(tb testing.TB, leases int64, clock Clock) *Generator {
	tb.Helper()
	g := New(Options{
		Config:   Config{MaxThroughput: leases * 256, Fallback: FallbackNone, MaxBackwardMS: 5000},
		Timeline: snowflake.DefaultTimeline(), Clock: clock, Mark: &mark{}, Rand: rand.New(rand.NewPCG(1, 2)),
	})
	tb.Cleanup(g.Stop)
	now := clock.NowNS() / int64(time.Millisecond)
	var held []lease.Lease
	for id := range leases {
		held = append(held, lease.Lease{
			ID: id, Created: now, Expired: now + 1<<40, ReservedUntil: now + 1<<40, Secret: "s",
			EpochMS: snowflake.DefaultEpochMS, BitReserve: snowflake.BitReserve,
			BitTS: snowflake.DefaultBitTS, BitID: snowflake.DefaultBitID, BitSeq: snowflake.DefaultBitSeq,
		})
	}
	g.Update(held, nil, nil)
	return g
}

func epochClock(step time.Duration) *steppingClock {
	return &steppingClock{at: snowflake.DefaultEpochMS * int64(time.Millisecond), step: int64(step)}
}

// BenchmarkNext is the request path's part of one call, without contention.
func BenchmarkNext(b *testing.B) {
	for _, bench := range []struct {
		name   string
		count  int64
		leases int64
		clock  Clock
	}{
		{"single/1 lease", 1, 1, epochClock(10 * time.Microsecond)}, // 100 calls per millisecond
		{"single/256 leases", 1, 256, epochClock(50 * time.Nanosecond)},
		{"single/256 leases/wall clock", 1, 256, wallClock{}},
		{"batch of 1000/256 leases", 1000, 256, epochClock(25 * time.Microsecond)}, // 40 calls per millisecond
	} {
		b.Run(bench.name, func(b *testing.B) {
			g := newBusy(b, bench.leases, bench.clock)
			request := Request{Count: bench.count, Timeout: time.Second}
			ranges := make([]Range, 0, 64)
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if ranges, err = g.Next(b.Context(), request, ranges[:0]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(bench.count), "ns/ID")
		})
	}
}

// BenchmarkNextContended is single IDs for as many callers as there are cores.
func BenchmarkNextContended(b *testing.B) {
	g := newBusy(b, 256, wallClock{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		ranges := make([]Range, 0, 1)
		for pb.Next() {
			var err error
			if ranges, err = g.Next(b.Context(), Request{Count: 1, Timeout: time.Second}, ranges[:0]); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func TestNextDoesNotAllocate(t *testing.T) {
	for _, count := range []int64{1, 1000} {
		g := newBusy(t, 256, epochClock(25*time.Microsecond))
		request := Request{Count: count, Timeout: time.Second}
		ranges := make([]Range, 0, 64)
		if n := testing.AllocsPerRun(1000, func() {
			var err error
			if ranges, err = g.Next(t.Context(), request, ranges[:0]); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%v allocations in a call for %d IDs", n, count)
		}
	}
}
