package generator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { await.Main(m) }

// wall is the bubble's clock, moved by offset.
type wall struct{ offset atomic.Int64 }

func (w *wall) NowNS() int64 { return time.Now().UnixNano() + w.offset.Load() }

func (w *wall) ms() int64 { return w.NowNS() / int64(time.Millisecond) }

type mark struct{ v atomic.Int64 }

func (m *mark) RaiseMark(ms int64) { m.v.Store(max(m.v.Load(), ms)) }

type rig struct {
	*Generator
	clock *wall
	mark  *mark
}

var bubbleTimeline = snowflake.Timeline{EpochMS: 900_000_000_000, BitTS: 41}

func newRig(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	r := &rig{clock: &wall{}, mark: &mark{}}
	o := Options{
		Config:   Config{MaxThroughput: 256, Fallback: FallbackCachedRandom, MaxBackwardMS: 5000},
		Timeline: bubbleTimeline, Clock: r.clock, Mark: r.mark, Rand: rand.New(rand.NewPCG(1, 2)),
	}
	if change != nil {
		change(&o)
	}
	r.Generator = New(o)
	t.Cleanup(r.Stop)
	return r
}

// inBubble runs the test of a generator on a fake clock.
func inBubble(t *testing.T, change func(*Options), test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newRig(t, change)) })
}

// onLease is inBubble with a lease, which has given so many IDs.
func onLease(t *testing.T, given int64, test func(t *testing.T, r *rig)) {
	t.Helper()
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.grant(7)
		r.next(t, given)
		test(t, r)
	})
}

// grant gives the generator leases of 256 IDs per ms from now on.
func (r *rig) grant(ids ...int64) {
	var held []lease.Lease
	for _, id := range ids {
		held = append(held, lease.Lease{
			ID: id, Created: r.clock.ms(), Expired: r.clock.ms() + 600_000, ReservedUntil: r.clock.ms() + 1_200_000,
			Secret: "s", EpochMS: bubbleTimeline.EpochMS, BitReserve: 1, BitTS: 41, BitID: 14, BitSeq: 8,
		})
	}
	r.Update(held, nil, nil)
}

func (r *rig) next(t *testing.T, n int64) []snowflake.ID {
	t.Helper()
	ids, err := r.try(n, time.Minute)
	must.Succeed(t, err)
	return ids
}

func (r *rig) try(n int64, timeout time.Duration) ([]snowflake.ID, error) {
	ranges, err := r.Next(context.Background(), Request{Count: n, Timeout: timeout}, nil)
	if err != nil {
		return nil, err
	}
	return expand(ranges), nil
}

func expand(ranges []Range) (ids []snowflake.ID) {
	for _, rg := range ranges {
		for i := range rg.Count {
			ids = append(ids, rg.Start+snowflake.ID(i))
		}
	}
	return ids
}

func ascending(t *testing.T, ids []snowflake.ID) {
	t.Helper()
	for i := 1; i < len(ids); i++ {
		if ids[i] <= ids[i-1] {
			t.Fatalf("ID %d (%d) is not above the one before it (%d)", i, ids[i], ids[i-1])
		}
	}
}

// TestConcurrentCallers: all IDs differ, and each caller's ascend.
func TestConcurrentCallers(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Spread = true; o.MaxThroughput = 1024 })
	r.grant(3, 5, 4, 900)
	var mu sync.Mutex
	seen := map[snowflake.ID]bool{}
	var wg sync.WaitGroup
	for c := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(c), 0))
			var mine []snowflake.ID
			for range 200 {
				ids, err := r.try(1+rnd.Int64N(300)*rnd.Int64N(2), time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				mine = append(mine, ids...)
			}
			ascending(t, mine) // seed 000-5.10-1
			mu.Lock()
			defer mu.Unlock()
			for _, id := range mine {
				if seen[id] {
					t.Errorf("%d was given out twice", id)
				}
				seen[id] = true
			}
		})
	}
	wg.Wait()
}

// TestCallersAreNoBackwardClock: many callers at once, none of whom may be
// told that the clock is behind because another was faster.
func TestCallersAreNoBackwardClock(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxThroughput = 1 << 20; o.MaxBackwardMS = 0; o.Standalone = true })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20_000 {
				if _, err := r.try(1, time.Minute); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := r.Stats().BackwardEvents; n != 0 {
		t.Errorf("%d backward clock events on a clock that never went back", n)
	}
}

func TestDeadlineIsHonoured(t *testing.T) {
	onLease(t, 1, func(t *testing.T, r *rig) {
		began := time.Now()
		_, err := r.try(65_536, 20*time.Millisecond)
		var timeout *TimeoutError
		if !errors.As(err, &timeout) || timeout.For != WaitSequence || time.Since(began) != 20*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if _, err := r.try(65_536, 0); !errors.As(err, &timeout) || timeout.Waited != 0 {
			t.Errorf("without any time to wait: %v", err)
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		gone := errors.New("the caller has gone")
		time.AfterFunc(10*time.Millisecond, func() { cancel(gone) })
		if _, err := r.Next(ctx, Request{Count: 65_536, Timeout: time.Minute}, nil); !errors.Is(err, gone) {
			t.Errorf("a cancelled caller: %v", err)
		}
		r.next(t, 1)
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.q.waiting) > 0 {
			t.Errorf("%d waiters are left", len(r.q.waiting))
		}
	})
}

func TestBackwardClock(t *testing.T) {
	for _, tc := range []struct {
		limit, jump int64
		wait        time.Duration // what a caller waits who needs a new millisecond; 0 = fails
	}{
		{5000, 3000, 3001 * time.Millisecond}, // seeds 000-5.6-1, 001-24 and 003-2-5
		{5000, 5000, 5001 * time.Millisecond},
		{5000, 5001, 0}, // seeds 000-5.6-1 and 003-2-5
		{5000, 7000, 0},
		{0, 1, 0}, // seeds 000-5.6-2 and 000-10.5-1
		{0, 3600_000, 0},
		{-1, 3600_000, 3600_001 * time.Millisecond}, // seeds 000-5.6-2 and 000-11.4-1
	} {
		t.Run(fmt.Sprintf("limit %d ms, jump %d ms", tc.limit, tc.jump), func(t *testing.T) {
			inBubble(t, func(o *Options) { o.MaxBackwardMS = tc.limit; o.MaxThroughput = 4 }, func(t *testing.T, r *rig) {
				r.grant(7)
				time.Sleep(10 * time.Millisecond)
				first := r.next(t, 1)
				r.clock.offset.Add(-tc.jump * int64(time.Millisecond))
				if tc.wait == 0 {
					var backward *ClockBackwardError
					if _, err := r.try(1, 2*time.Hour); !errors.As(err, &backward) || backward.BackwardMS != tc.jump || backward.LimitMS != tc.limit {
						t.Errorf("got %v", err)
					}
					return
				}
				// The rest of the last millisecond is spent first.
				began := time.Now()
				ids, err := r.try(3, 2*time.Hour)
				if err != nil || time.Since(began) != 0 || bubbleTimeline.UnixMS(ids[2]) != bubbleTimeline.UnixMS(first[0]) {
					t.Errorf("the rest of the last millisecond: %v after %v, %v", ids, time.Since(began), err)
				}
				more, err := r.try(1, 2*time.Hour)
				must.Succeed(t, err)
				ascending(t, append(append(first, ids...), more...))
				if took := time.Since(began); took < tc.wait-time.Millisecond || took > tc.wait+maxNap {
					t.Errorf("waited %v, want %v", took, tc.wait)
				}
			})
		})
	}
}

// TestSmallStepDuringALongBatch: a batch that has waited long for milliseconds
// has not waited long for the clock.
func TestSmallStepDuringALongBatch(t *testing.T) {
	inBubble(t, func(o *Options) { o.MaxBackwardMS = 100 }, func(t *testing.T, r *rig) {
		r.grant(7)
		time.AfterFunc(200*time.Millisecond, func() { r.clock.offset.Add(-int64(3 * time.Millisecond)) })
		ascending(t, r.next(t, 65_536+65_536))
	})
}

// TestClockThatStandsStill: no growing distance, yet no request waits for ever.
func TestClockThatStandsStill(t *testing.T) {
	inBubble(t, func(o *Options) { o.MaxThroughput = 1; o.MaxBackwardMS = 2000 }, func(t *testing.T, r *rig) {
		r.grant(7)
		r.next(t, 1)
		stop := time.Now().Add(time.Minute)
		r.clock.offset.Add(-int64(time.Second))
		go func() {
			for time.Now().Before(stop) {
				time.Sleep(10 * time.Millisecond)
				r.clock.offset.Add(-int64(10 * time.Millisecond))
			}
		}()
		var backward *ClockBackwardError
		began := time.Now()
		if _, err := r.try(1, time.Hour); !errors.As(err, &backward) || time.Since(began) > 2500*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		time.Sleep(2 * time.Minute)
	})
}

func TestStartupWait(t *testing.T) {
	starting := func(o *Options) { o.StartupWait = 500 * time.Millisecond }
	isFallback := func(ids []snowflake.ID) bool { return bubbleTimeline.IsFallback(ids[0]) }
	t.Run("the lease comes in time", func(t *testing.T) {
		inBubble(t, starting, func(t *testing.T, r *rig) {
			time.AfterFunc(300*time.Millisecond, func() { r.grant(7) })
			if ids := r.next(t, 1); isFallback(ids) { // seed 000-5.4-2
				t.Error("a healthy start made a fallback ID")
			}
		})
	})
	t.Run("the lease is granted ahead of the clock", func(t *testing.T) {
		inBubble(t, starting, func(t *testing.T, r *rig) {
			r.clock.offset.Add(int64(200 * time.Millisecond))
			r.grant(7)
			r.clock.offset.Add(-int64(200 * time.Millisecond))
			began := time.Now()
			if ids := r.next(t, 1); isFallback(ids) || time.Since(began) != 200*time.Millisecond {
				t.Errorf("fallback %v after %v", isFallback(ids), time.Since(began))
			}
		})
	})
	t.Run("no lease comes", func(t *testing.T) {
		inBubble(t, starting, func(t *testing.T, r *rig) {
			began := time.Now()
			if ids := r.next(t, 1); !isFallback(ids) || time.Since(began) != 500*time.Millisecond {
				t.Errorf("fallback %v after %v", isFallback(ids), time.Since(began))
			}
		})
	})
	t.Run("the first acquire fails", func(t *testing.T) {
		inBubble(t, starting, func(t *testing.T, r *rig) {
			time.AfterFunc(100*time.Millisecond, func() { r.Update(nil, nil, errors.New("refused")) })
			began := time.Now()
			if ids := r.next(t, 1); !isFallback(ids) || time.Since(began) != 100*time.Millisecond {
				t.Errorf("fallback %v after %v", isFallback(ids), time.Since(began))
			}
		})
	})
	t.Run("a regular ID is asked for, and the acquire fails", func(t *testing.T) {
		inBubble(t, starting, func(t *testing.T, r *rig) {
			cause := errors.New("refused")
			time.AfterFunc(100*time.Millisecond, func() { r.Update(nil, nil, cause) })
			_, err := r.Next(context.Background(), Request{Count: 1, RegularOnly: true, Timeout: time.Minute}, nil)
			if _, ok := errors.AsType[*LeaseAcquisitionError](err); !ok || !errors.Is(err, cause) {
				t.Errorf("got %v", err)
			}
		})
	})
}

func TestGrowthIsAskedForOnceLeasesAreUsedUp(t *testing.T) {
	inBubble(t, func(o *Options) { o.MaxThroughput = 512 }, func(t *testing.T, r *rig) {
		r.grant(7)
		r.next(t, 256) // seed 000-2.2-4
		select {
		case <-r.Growth():
			t.Error("asked for more before it was needed")
		default:
		}
		r.next(t, 2) // seed 000-5.8-2
		select {
		case <-r.Growth():
		default:
			t.Error("did not ask for more")
		}
		r.grant(7, 8)
		time.Sleep(time.Millisecond)
		r.next(t, 513)
		select {
		case <-r.Growth():
			t.Error("asked for more than max_throughput_per_ms")
		default:
		}
	})
}

// TestSeal: once Update has left a lease out, nothing is made from it.
func TestSeal(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxThroughput = 1 << 20 })
	layout := snowflake.DefaultLayout()
	stop := make(chan struct{})
	var sealed atomic.Int64 // machine IDs below this one are sealed
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				before := sealed.Load()
				for _, id := range r.next(t, 3) {
					in, err := snowflake.Inspect(id, layout, bubbleTimeline.EpochMS, snowflake.Codec{})
					if err != nil || in.MachineID < before {
						t.Errorf("machine ID %d after %d was sealed (%v)", in.MachineID, before, err)
					}
				}
			}
		})
	}
	for id := range int64(500) {
		r.grant(id, id+1)
		r.grant(id + 1)
		sealed.Store(id + 1)
	}
	close(stop)
	wg.Wait()
}

// TestSpread: a quiet service's IDs are not all multiples of 256, and a busy
// one still gets every value of a millisecond.
func TestSpread(t *testing.T) {
	inBubble(t, func(o *Options) { o.Spread = true }, func(t *testing.T, r *rig) {
		r.grant(7)
		residues := map[int64]bool{}
		for range 500 {
			time.Sleep(20 * time.Millisecond)
			residues[int64(r.next(t, 1)[0])&255] = true
		}
		if len(residues) < 150 {
			t.Errorf("500 quiet IDs have only %d residues modulo 256", len(residues))
		}
		began := time.Now()
		r.next(t, 256*100)
		if took := time.Since(began); took > 103*time.Millisecond {
			t.Errorf("25,600 IDs took %v, so that spreading costs throughput", took)
		}
	})
}

// TestRandomFallbackLooksUniform: random low bits, at any rate, are spread over all 21 bits, and
// ascend within the millisecond.
func TestRandomFallbackLooksUniform(t *testing.T) {
	for _, perMS := range []int64{1, 10, 256} {
		t.Run(fmt.Sprint(perMS), func(t *testing.T) {
			inBubble(t, func(o *Options) { o.Standalone = true }, func(t *testing.T, r *rig) {
				const buckets = 8
				var count [buckets]int
				var ones [21]int // by bit
				total := 0
				for ms := range int64(400) {
					time.Sleep(time.Millisecond)
					ids := r.next(t, perMS)
					ascending(t, ids)
					if ms < 10 {
						continue // until recent use is known
					}
					for _, id := range ids {
						low := bubbleTimeline.Low(id) - bubbleTimeline.FallbackBit()
						count[low*buckets/bubbleTimeline.FallbackBit()]++
						total++
						for b := range ones {
							ones[b] += int(low >> b & 1)
						}
					}
				}
				for b, n := range count {
					if share := float64(n) / float64(total) * buckets; share < 0.5 || share > 1.6 {
						t.Errorf("bucket %d of %d has %.2f times its share", b, buckets, share)
					}
				}
				for b, n := range ones {
					if share := float64(n) / float64(total); share < 0.4 || share > 0.6 { // seed 000-2.3-2
						t.Errorf("bit %d is set in %.2f of the IDs", b, share)
					}
				}
			})
		})
	}
}

func TestOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tl := snowflake.Timeline{BitTS: 39}
		tl.EpochMS = time.Now().UnixMilli() + 5 - 1<<39
		r := newRig(t, func(o *Options) { o.Timeline = tl; o.Standalone = true })
		r.next(t, 1)
		time.Sleep(5 * time.Millisecond)
		if _, err := r.try(1, time.Second); !errors.Is(err, ErrOverflow) {
			t.Errorf("past the end of the timeline: %v", err)
		}
	})
}

func TestStandalone(t *testing.T) {
	inBubble(t, func(o *Options) { o.Standalone = true; o.StartupWait = time.Second }, func(t *testing.T, r *rig) {
		if id := r.next(t, 1)[0]; !bubbleTimeline.IsFallback(id) {
			t.Error("a regular ID without a provider")
		}
		if _, err := r.Next(context.Background(), Request{Count: 1, RegularOnly: true, Timeout: time.Second}, nil); !errors.Is(err, ErrNoProvider) {
			t.Errorf("regular_only: %v", err)
		}
	})
}

func TestRebase(t *testing.T) {
	inBubble(t, func(o *Options) { o.Standalone = true }, func(t *testing.T, r *rig) {
		before := r.next(t, 1)[0]
		later := snowflake.Timeline{EpochMS: bubbleTimeline.EpochMS + 1_000_000, BitTS: 41}
		if r.Rebase(later) {
			t.Error("moved to a later epoch, which makes smaller IDs")
		}
		earlier := snowflake.Timeline{EpochMS: bubbleTimeline.EpochMS - 1_000_000, BitTS: 41}
		if !r.Rebase(earlier) {
			t.Error("did not move to an earlier epoch")
		}
		if after := r.next(t, 1)[0]; after <= before {
			t.Errorf("%d after %d", after, before)
		}
	})
}

// TestRebaseDropsTheLeases: they belong to the timeline that is left.
func TestRebaseDropsTheLeases(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.grant(7)
		time.Sleep(10 * time.Millisecond)
		if id := r.next(t, 1)[0]; bubbleTimeline.IsFallback(id) {
			t.Fatal("a fallback ID under a lease")
		}
		earlier := snowflake.Timeline{EpochMS: bubbleTimeline.EpochMS - 1_000_000, BitTS: 41}
		if !r.Rebase(earlier) {
			t.Fatal("did not move to an earlier epoch")
		}
		if id := r.next(t, 1)[0]; !earlier.IsFallback(id) {
			t.Error("a regular ID without a lease of this timeline")
		}
	})
}

func TestStop(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.grant(7)
		time.AfterFunc(50*time.Millisecond, r.Stop)
		if _, err := r.try(65_536, time.Minute); !errors.Is(err, ErrStopped) {
			t.Errorf("a waiter at the stop: %v", err)
		}
		if _, err := r.try(1, time.Minute); !errors.Is(err, ErrStopped) {
			t.Errorf("a caller after the stop: %v", err)
		}
	})
}
