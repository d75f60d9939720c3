package generator

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// handClock stands still until it is set, and counts how often it is read. A generator with a request
// that waits reads it by itself.
type handClock struct{ now, read atomic.Int64 }

func (c *handClock) NowNS() int64 {
	c.read.Add(1)
	return c.now.Load()
}

func (c *handClock) ms() int64 { return c.now.Load() / int64(time.Millisecond) }

// at sets the clock to so many milliseconds after the start of the test.
func (c *handClock) at(ms float64) {
	c.now.Store((testEpoch+1000)*int64(time.Millisecond) + int64(ms*float64(time.Millisecond)))
}

// newByHand returns a generator with a lease of 8 values, valid from the test's millisecond 0 to
// 1000.
func newByHand(t *testing.T, change func(*Config)) (*Generator, *handClock) {
	t.Helper()
	cfg := Config{MaxThroughput: 64, Fallback: FallbackCachedRandom}
	if change != nil {
		change(&cfg)
	}
	c := &handClock{}
	c.at(0)
	g := New(Options{Config: cfg, Timeline: testTimeline, Clock: c, Mark: &mark{}, Rand: rand.New(rand.NewPCG(1, 2))})
	t.Cleanup(g.Stop)
	g.Update([]lease.Lease{validFrom(0)}, nil, nil)
	return g, c
}

func validFrom(ms int64) lease.Lease { return testLease(1, 3, testEpoch+1000+ms, testEpoch+2000+ms) }

// begin is Start for n IDs without waiting; it returns the last one's kind,
// and its time in the test's milliseconds.
func begin(t *testing.T, g *Generator, at Reading, n int64) (Kind, int64) {
	t.Helper()
	ranges, pending, err := g.Start(at, Request{Count: n}, nil)
	if err != nil || pending != nil {
		t.Fatalf("%v, %v", pending, err)
	}
	if total := count(ranges); total != n {
		t.Fatalf("%d IDs, want %d", total, n)
	}
	last := ranges[len(ranges)-1]
	return last.Kind, testTimeline.UnixMS(last.Start) - testEpoch - 1000
}

func TestOneReadingServesABurst(t *testing.T) {
	g, c := newByHand(t, nil)
	c.at(5.5)
	burst := g.Read()
	c.read.Store(0)
	c.at(7)
	for range 8 {
		if _, ms := begin(t, g, burst, 1); ms != 5 {
			t.Errorf("an ID embeds %d, and the reading is 5", ms)
		}
	}
	if c.read.Load() != 0 {
		t.Errorf("the clock was read %d times beside the burst's reading", c.read.Load())
	}
}

// TestOvertakenReading: a reading that others have overtaken is not a clock
// that went back.
func TestOvertakenReading(t *testing.T) {
	g, c := newByHand(t, nil) // MaxBackwardMS is 0: a clock that is behind fails at once
	burst := g.Read()
	c.at(2)
	begin(t, g, 0, 1)
	if _, ms := begin(t, g, burst, 1); ms != 2 {
		t.Errorf("an ID embeds %d, and the time is 2", ms)
	}
	if n := g.Stats().BackwardEvents; n != 0 {
		t.Errorf("%d backward clock events on a clock that never went back", n)
	}
}

// TestReadingFromBeforeTheLeases: a request that sees new leases gets IDs from them.
func TestReadingFromBeforeTheLeases(t *testing.T) {
	g, c := newByHand(t, nil)
	g.Update(nil, nil, nil)
	c.at(9.5)
	burst := g.Read()
	c.at(10)
	g.Update([]lease.Lease{validFrom(10)}, nil, nil)
	if kind, ms := begin(t, g, burst, 1); kind != Regular || ms != 10 {
		t.Errorf("an ID of kind %d at %d", kind, ms)
	}
}

// TestUpdateEndsTheRun: a burst does not go on with values of a lease that is
// gone, or of none, nor with those of the lease that it began with.
func TestUpdateEndsTheRun(t *testing.T) {
	g, _ := newByHand(t, nil)
	burst := g.Read()
	begin(t, g, burst, 2)
	g.Update([]lease.Lease{testLease(2, 3, testEpoch+1000, testEpoch+2000)}, nil, nil)
	ranges, _, err := g.Start(burst, Request{Count: 1}, nil)
	if err != nil || testTimeline.Low(ranges[0].Start) != 16 {
		t.Errorf("%v, %v; want low bits 16, with which the new lease begins", ranges, err)
	}
	g.Update(nil, nil, nil)
	if kind, _ := begin(t, g, burst, 1); kind == Regular {
		t.Error("a regular ID without a lease")
	}
	// The millisecond goes on in the fallback's half, even if leases come back.
	g.Update([]lease.Lease{validFrom(0)}, nil, nil)
	if ranges, _, err := g.Start(burst, Request{Count: 1}, nil); err == nil {
		t.Errorf("%v after a fallback ID of the same millisecond", ranges)
	}
}

// TestRegularOnlyInABurst: a fallback ID before it in the burst changes nothing.
func TestRegularOnlyInABurst(t *testing.T) {
	g, _ := newByHand(t, nil)
	g.Update(nil, &[]lease.Lease{validFrom(0)}[0], nil)
	burst := g.Read()
	if kind, _ := begin(t, g, burst, 1); kind != FallbackCachedID {
		t.Fatal("no cached fallback")
	}
	var none *LeaseAcquisitionError
	if ranges, _, err := g.Start(burst, Request{Count: 1, RegularOnly: true}, nil); !errors.As(err, &none) {
		t.Errorf("%v, %v", ranges, err)
	}
}

// TestBurstStandsInLine: a burst that could go on waits behind waiting requests.
func TestBurstStandsInLine(t *testing.T) {
	inBubble(t, func(o *Options) { o.MaxThroughput = 100 }, func(t *testing.T, r *rig) {
		r.grant(7)
		burst := r.Read()
		if _, _, err := r.Start(burst, Request{Count: 1}, nil); err != nil {
			t.Fatal(err)
		}
		_, first, err := r.Start(burst, Request{Count: 100, Timeout: time.Minute}, nil)
		if first == nil || err != nil {
			t.Fatal(first, err)
		}
		r.clock.offset.Add(int64(time.Millisecond)) // the timer has not fired
		var timeout *TimeoutError
		if ranges, _, err := r.Start(burst, Request{Count: 1}, nil); !errors.As(err, &timeout) {
			t.Errorf("%v, %v before those who wait", ranges, err)
		}
		if _, err := first.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		// With no request waiting, a burst goes on again.
		if _, _, err := r.Start(r.Read(), Request{Count: 1}, nil); err != nil {
			t.Error(err)
		}
	})
}

// TestReadingFromBeforeARebase: nor does the move to another timeline make a
// burst look late.
func TestReadingFromBeforeARebase(t *testing.T) {
	g, c := newByHand(t, func(c *Config) { c.Standalone = true })
	burst := g.Read()
	c.at(1)
	if !g.Rebase(snowflake.Timeline{EpochMS: testEpoch - 1000, BitTS: testBitTS}) {
		t.Fatal("not rebased")
	}
	if _, _, err := g.Start(burst, Request{Count: 1}, nil); err != nil {
		t.Error(err)
	}
	if n := g.Stats().BackwardEvents; n != 0 {
		t.Errorf("%d backward clock events on a clock that never went back", n)
	}
}

// TestStepBackIsSeenByTheNextBurst: and a reading from before the step is not
// used any more once the step has been seen.
func TestStepBackIsSeenByTheNextBurst(t *testing.T) {
	g, c := newByHand(t, nil)
	c.at(20)
	begin(t, g, g.Read(), 1)
	before := g.Read()
	c.at(12)
	for i, burst := range []Reading{g.Read(), before, 0, g.Read()} {
		var backward *ClockBackwardError
		if ranges, _, err := g.Start(burst, Request{Count: 1}, nil); !errors.As(err, &backward) || backward.BackwardMS != 8 {
			t.Errorf("reading %d: %v, %v", i, ranges, err)
		}
	}
	if n := g.Stats().BackwardEvents; n != 1 {
		t.Errorf("%d backward clock events, and it went back once", n)
	}
	c.at(21)
	if _, ms := begin(t, g, g.Read(), 1); ms != 21 {
		t.Errorf("an ID embeds %d, and the time is 21", ms)
	}
}

// TestPendingHoldsItsPlace: waiting requests are served in the order of their
// Starts, not of their Waits, and keep what they had.
func TestPendingHoldsItsPlace(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.grant(7)
		ctx := context.Background()
		start := func(n int64) *Pending {
			ranges, p, err := r.Start(r.Read(), Request{Count: n, Timeout: time.Minute}, make([]Range, 0, 4))
			if p == nil || err != nil || ranges != nil {
				t.Fatalf("%v, %v, %v", ranges, p, err)
			}
			if p.For() != WaitSequence {
				t.Errorf("waits for the %v", p.For())
			}
			return p
		}
		first, second, third := start(300), start(1), start(1)
		time.Sleep(20 * time.Millisecond)
		c, err := third.Wait(ctx)
		must.Succeed(t, err)
		b, err := second.Wait(ctx)
		must.Succeed(t, err)
		a, err := first.Wait(ctx)
		must.Succeed(t, err)
		firsts := expand(a)
		ascending(t, firsts)
		if len(firsts) != 300 || firsts[256] >= b[0].Start || b[0].Start >= c[0].Start {
			t.Errorf("%d IDs, the 257th %d, then %d and %d", len(firsts), firsts[256], b[0].Start, c[0].Start)
		}
	})
}

// TestJoiningCountsFromNow: a burst's reading does not entitle to the
// milliseconds that have passed since.
func TestJoiningCountsFromNow(t *testing.T) {
	onLease(t, 256, func(t *testing.T, r *rig) {
		_, first, _ := r.Start(0, Request{Count: 1, Timeout: time.Minute}, nil)
		r.clock.offset.Add(int64(time.Millisecond)) // and the timer has not fired
		burst := r.Read()
		r.clock.offset.Add(int64(4 * time.Millisecond))
		ranges, pending, err := r.Start(burst, Request{Count: 1, Timeout: time.Minute}, nil)
		if pending != nil || err != nil {
			t.Fatal(pending, err)
		}
		if got, now := bubbleTimeline.UnixMS(ranges[0].Start), r.clock.ms(); got != now {
			t.Errorf("an ID embeds %d, and it was asked for at %d", got, now)
		}
		if _, err := first.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestStopEndsTheRun: nor does a burst go on after it.
func TestStopEndsTheRun(t *testing.T) {
	g, _ := newByHand(t, nil)
	burst := g.Read()
	begin(t, g, burst, 1)
	g.Stop()
	if ranges, _, err := g.Start(burst, Request{Count: 1}, nil); !errors.Is(err, ErrStopped) {
		t.Errorf("%v, %v", ranges, err)
	}
}

// TestCountBelowOne asks for nothing and gets nothing.
func TestCountBelowOne(t *testing.T) {
	g, _ := newByHand(t, nil)
	burst := g.Read()
	begin(t, g, burst, 1)
	for _, n := range []int64{0, -1} {
		if ranges, pending, err := g.Start(burst, Request{Count: n}, nil); len(ranges) != 0 || pending != nil || err != nil {
			t.Errorf("a count of %d: %v, %v, %v", n, ranges, pending, err)
		}
	}
	begin(t, g, burst, 1)
}

// TestRun: a run has what the last request left of the reading's millisecond, in order, and
// nothing for other readings or while a request waits.
func TestRun(t *testing.T) {
	g, c := newByHand(t, nil)
	if r := g.Run(g.Read(), 1); r.Count != 0 {
		t.Errorf("%v before any request", r)
	}
	begin(t, g, g.Read(), 1)
	burst := g.Read()
	c.at(1)
	for _, want := range []int64{0, -1} {
		if r := g.Run(burst, want); r.Count != 0 {
			t.Errorf("%v for a count of %d", r, want)
		}
	}
	if r := g.Run(g.Read(), 1); r.Count != 0 {
		t.Errorf("%v at the next millisecond's reading", r)
	}
	for _, step := range []struct{ want, first, count int64 }{{3, 1, 3}, {10, 4, 4}, {1, 0, 0}} {
		r := g.Run(burst, step.want)
		if r.Count != step.count || r.Count > 0 && (testTimeline.Low(r.Start) != 8+step.first || r.Kind != Regular) {
			t.Errorf("%v for %d, want %d from %d on", r, step.want, step.count, step.first)
		}
	}
	begin(t, g, g.Read(), 1)
	_, pending, err := g.Start(g.Read(), Request{Count: 20, Timeout: time.Hour}, nil)
	must.Succeed(t, err)
	if r := g.Run(g.Read(), 1); r.Count != 0 {
		t.Errorf("%v past a request that waits", r)
	}
	pending.Cancel(ErrStopped)
}

// TestReadingThatGivesNothing: before a request fails or waits, the clock is read
// afresh.
func TestReadingThatGivesNothing(t *testing.T) {
	for name, before := range map[string]int64{"its millisecond is used up": 8, "in the middle of a batch": 0} {
		g, c := newByHand(t, nil)
		burst := g.Read()
		if before > 0 {
			begin(t, g, burst, before)
		}
		c.at(1)
		if _, ms := begin(t, g, burst, 16-before); ms != 1 {
			t.Errorf("%s: the last ID embeds %d, and the time is 1", name, ms)
		}
	}
}
