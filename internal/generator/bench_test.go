package generator

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// movedClock moves on by step at each reading, so that no benchmark depends on
// how fast the machine is, or ever waits for a millisecond. With a real clock
// below it, it also costs what the daemon's clock does.
type movedClock struct {
	real        Clock // may be nil
	moved, step int64
}

func (c *movedClock) NowNS() int64 {
	c.moved += c.step
	if c.real == nil {
		return c.moved
	}
	return c.real.NowNS() + c.moved
}

func epochClock(step time.Duration) *movedClock {
	return &movedClock{moved: snowflake.DefaultEpochMS * int64(time.Millisecond), step: int64(step)}
}

// daemonClock is the clock of the daemon, moved by step where that is not 0.
func daemonClock(step time.Duration) Clock {
	real := clock.NewBelieved(clock.System{}, clock.Config{MaxForward: time.Second, Hold: time.Minute})
	if step == 0 {
		return real
	}
	return &movedClock{real: real, step: int64(step)}
}

// mappedMark costs what the daemon's memory-mapped mark does.
type mappedMark struct{ ms atomic.Int64 }

func (m *mappedMark) RaiseMark(ms int64) { m.ms.Store(ms) }

// newBusy returns a generator with many leases, of which only every stride-th machine
// ID is its own.
func newBusy(tb testing.TB, leases, stride int64, layout snowflake.Layout, clock Clock) *Generator {
	tb.Helper()
	g := New(Options{
		Config:   Config{MaxThroughput: leases * layout.Throughput(), Fallback: FallbackNone, MaxBackwardMS: 5000, Spread: true},
		Timeline: snowflake.DefaultTimeline(), Clock: clock, Mark: &mappedMark{}, Rand: rand.New(rand.NewPCG(1, 2)),
	})
	tb.Cleanup(g.Stop)
	now := clock.NowNS() / int64(time.Millisecond)
	held := make([]lease.Lease, leases)
	for i := range held {
		held[i] = lease.Lease{
			ID: int64(i) * stride, Created: now, Expired: now + 1<<40, ReservedUntil: now + 1<<40, Secret: "s",
			EpochMS: snowflake.DefaultEpochMS, BitReserve: snowflake.BitReserve,
			BitTS: layout.BitTS, BitID: layout.BitID, BitSeq: layout.BitSeq,
		}
	}
	g.Update(held, nil, nil)
	return g
}

// BenchmarkNext reads the clock for each call. The time is only moved where
// the leases do not suffice for the speed of the machine.
func BenchmarkNext(b *testing.B) {
	tiny := snowflake.Layout{BitTS: 41, BitID: 20, BitSeq: 2}
	for _, bench := range []struct {
		name           string
		count          int64
		leases, stride int64
		layout         snowflake.Layout
		clock          Clock
	}{
		{"single/1 lease, no clock", 1, 1, 1, snowflake.DefaultLayout(), epochClock(10 * time.Microsecond)},

		{"single/256 leases", 1, 256, 1, snowflake.DefaultLayout(), daemonClock(0)},
		{"single/65536 leases of 4", 1, 65_536, 2, tiny, daemonClock(0)},
		{"batch of 1000/256 leases", 1000, 256, 1, snowflake.DefaultLayout(), daemonClock(20 * time.Microsecond)},
		{"batch of 1000/256 leases, none adjacent", 1000, 256, 2, snowflake.DefaultLayout(), daemonClock(20 * time.Microsecond)},
	} {
		b.Run(bench.name, func(b *testing.B) {
			g := newBusy(b, bench.leases, bench.stride, bench.layout, bench.clock)
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

// BenchmarkStart is single IDs in bursts that share a reading.
func BenchmarkStart(b *testing.B) {
	for _, burst := range []int{64, 1 << 14} {
		b.Run(fmt.Sprint("bursts of ", burst), func(b *testing.B) {
			g := newBusy(b, 256, 1, snowflake.DefaultLayout(), daemonClock(0))
			ranges := make([]Range, 0, 64)
			var at Reading
			left := 0
			b.ReportAllocs()
			for b.Loop() {
				if left == 0 {
					at, left = g.Read(), burst
				}
				left--
				var err error
				if ranges, _, err = g.Start(at, Request{Count: 1, Timeout: time.Second}, ranges[:0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestNextDoesNotAllocate(t *testing.T) {
	for _, count := range []int64{1, 1000} {
		for _, stride := range []int64{1, 2} {
			g := newBusy(t, 256, stride, snowflake.DefaultLayout(), epochClock(100*time.Microsecond))
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
			if n := testing.AllocsPerRun(1000, func() {
				at := g.Read()
				for range 3 {
					var err error
					if ranges, _, err = g.Start(at, request, ranges[:0]); err != nil {
						t.Fatal(err)
					}
				}
			}); n != 0 {
				t.Errorf("%v allocations in a burst of calls for %d IDs", n, count)
			}
		}
	}
}
