package keeper

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider/providertest"
)

// near reports whether something happened at the time, or as little later as a
// clock that counts milliseconds makes it.
func near(got, want time.Duration) bool { return got >= want && got <= want+2*time.Millisecond }

// acquires waits for nothing and returns the acquires so far, which must be so
// many.
func (r *rig) acquires(want int) []call {
	r.t.Helper()
	calls := r.remote.of(providertest.OpAcquire)
	if len(calls) != want {
		r.t.Fatalf("at %v: %d acquires, want %d: %v", r.elapsed(), len(calls), want, calls)
	}
	return calls
}

func (r *rig) wantHeld(want ...int64) {
	r.t.Helper()
	got := r.held()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		r.t.Errorf("at %v: machine IDs %v are held, want %v", r.elapsed(), got, want)
	}
}

func TestAsksForFullThroughputAtStart(t *testing.T) {
	onHost(t, func(s *setup) { s.MaxThroughput = 1024 }, func(t *testing.T, r *rig) {
		r.start()
		// The very first request waits for the lease rather than fall back.
		if _, kind := r.one(); kind != generator.Regular {
			t.Errorf("the first ID is %s", word(kind))
		}
		synctest.Wait()
		asked := r.acquires(1)[0]
		if asked.at != 0 || asked.ask.ThroughputPerMS != 1024 { // seed 000-5.8-1
			t.Errorf("the first acquire is %+v", asked)
		}
		if got := asked.ask; got.Service != service || got.Meta["host"] != "alpha" || len(got.RequestID) != 32 {
			t.Errorf("the request is %+v", got)
		}
		r.wantHeld(0, 1, 2, 3) // seed 000-11.3-1
		r.wantResults(ResultOK, 1)
		r.wantLogged("worker id allocated", 4)
		if _, took := r.ask(10 * 1024); took > 12*time.Millisecond { // seed 000-B.2-1
			t.Errorf("10 ms worth of IDs took %v", took)
		}
	})
}

func TestRenewsAtNinetyPercentAndNotBefore(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.start()
		r.until(time.Second)
		due := travelTime + renewal // the lease was granted when the request arrived
		r.until(due - 2*time.Millisecond)
		r.acquires(1)
		r.until(due + time.Second)
		if second := r.acquires(2)[1]; !near(second.at, due) { // seeds 000-4.4-2, 000-5.5-1, 003-3.2-6 and 003-4.3-3
			t.Errorf("renewed at %v, want %v", second.at, due)
		} else if second.ask.ThroughputPerMS != 256 {
			t.Errorf("asked for %d", second.ask.ThroughputPerMS)
		}
		// And on and on.
		r.until(3 * term)
		for i, c := range r.acquires(4) {
			if want := time.Duration(i) * (renewal + travelTime); c.at < want || c.at > want+5*time.Millisecond {
				t.Errorf("acquire %d at %v, want %v", i, c.at, want)
			}
		}
	})
}

func TestRenewalAsksForWhatWillNotRemain(t *testing.T) {
	onHost(t, func(s *setup) { s.MaxThroughput, s.terms.MaxLeasesPerAcquire = 512, 1 }, func(t *testing.T, r *rig) {
		r.start()
		r.until(5 * time.Minute)
		r.ask(5000) // more than one lease gives: a second one is acquired
		r.pass(time.Second)
		r.wantHeld(0, 1)
		r.acquires(2)
		// At 90% of the first, half of the throughput is going.
		r.until(renewal + time.Second)
		if got := r.acquires(3)[2].ask.ThroughputPerMS; got != 256 { // seed 000-4.3-1
			t.Errorf("asked for %d, want 256", got)
		}
	})
}

// TestGrowth: a provider that grants one lease at a time is asked again, for
// the missing ones, each time the leases are used up, but not at once:
// it may have a reason. A lease counts for as much as its layout has.
func TestGrowth(t *testing.T) {
	for bitSeq, asks := range map[int][]int64{8: {1024, 768, 512, 256}, 6: {256, 192, 128, 64}} {
		onHost(t, func(s *setup) {
			s.MaxThroughput = asks[0]
			s.terms = s.terms.WithBitSeq(bitSeq)
			s.terms.MaxLeasesPerAcquire = 1
		}, func(t *testing.T, r *rig) {
			r.start()
			for r.elapsed() < 30*time.Second {
				r.ask(20_000)
			}
			calls := r.acquires(len(asks))
			for i, want := range asks {
				if got := calls[i].ask.ThroughputPerMS; got != want { // seeds 000-4.3-3 and 000-5.8-4
					t.Errorf("acquire %d asks for %d, want %d", i, got, want)
				}
				if i > 0 && !near(calls[i].at-calls[i-1].at-2*travelTime, time.Second) {
					t.Errorf("acquire %d comes %v after the one before", i, calls[i].at-calls[i-1].at)
				}
			}
			r.wantHeld(0, 1, 2, 3) // seed 000-5.8-1
			r.wantKinds("regular")
		})
	}
}

// TestNoGrowthWithoutNeed: fewer leases than asked for are enough until they
// are used up.
func TestNoGrowthWithoutNeed(t *testing.T) {
	onHost(t, func(s *setup) { s.MaxThroughput, s.terms.MaxLeasesPerAcquire = 1024, 1 }, func(t *testing.T, r *rig) {
		r.start()
		r.traffic(2*travelTime + maxWait)
		r.until(renewal - time.Second)
		r.acquires(1)
		r.wantHeld(0)
		if s := r.keeper.Status(); s.Failures != 0 || s.Cause != nil {
			t.Errorf("fewer leases than asked for count as a failure: %+v", s)
		}
	})
}

// TestGrowthWaitsForLeasesThatAreComing: a provider with a clock that is ahead grants leases for
// use only in a while. Until then there is no reason for more.
func TestGrowthWaitsForLeasesThatAreComing(t *testing.T) {
	onHost(t, func(s *setup) { s.MaxThroughput, s.terms.MaxLeasesPerAcquire = 512, 1 }, func(t *testing.T, r *rig) {
		r.remote.jump(20 * time.Second)
		r.start()
		r.until(30 * time.Second)
		for r.elapsed() < 45*time.Second {
			r.ask(20_000)
		}
		r.acquires(2)
		r.wantHeld(0, 1)
		r.wantKinds("regular")
	})
}

// TestGrowthThatBringsWhatIsHeld: an answer from a cache names the
// lease that is held already. It is held once, as before.
func TestGrowthThatBringsWhatIsHeld(t *testing.T) {
	onHost(t, func(s *setup) { s.MaxThroughput, s.terms.MaxLeasesPerAcquire = 512, 1 }, func(t *testing.T, r *rig) {
		r.start()
		r.until(2 * time.Second)
		first := r.acquires(1)[0].leases
		r.remote.answer(func([]lease.Lease) []lease.Lease { return first })
		r.ask(20_000)
		r.pass(time.Second / 2)
		r.acquires(2) // the next growth is a second later
		r.wantHeld(0)
		r.wantCalls(providertest.OpRelease, 0)
		r.expect(generator.Regular)
	})
}

// TestFailedGrowthBacksOff: a full pool is not asked every millisecond, and
// costs the leases in use nothing.
func TestFailedGrowthBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(s *setup) {
			s.MaxThroughput, s.terms.MaxLeasesPerAcquire = 512, 1
			s.terms.IDs.End = 1 // a pool of one
		})
		r.start()
		for r.elapsed() < 40*time.Second {
			r.ask(20_000)
		}
		// Growth may begin a second after the start, and then 1, 2, 4, 8 and
		// 16 s after each failure.
		calls := r.acquires(7)
		for i := 2; i < len(calls); i++ {
			wait := backoff(i-1, time.Second, time.Minute, 0)
			if got := calls[i].at - calls[i-1].at - travelTime; !near(got, wait) {
				t.Errorf("acquire %d after %v, want %v", i, got, wait)
			}
		}
		r.wantKinds("regular")
		r.wantHeld(0)
	})
}

// TestRestartBeforeTheLeaseBegins: a daemon that crashes again and again, and adopts a lease which
// its clock has not reached yet, does not acquire another one each time.
func TestRestartBeforeTheLeaseBegins(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.remote.jump(50 * time.Second)
		r.start()
		for range 10 {
			r.pass(3 * time.Second)
			r.restart()
		}
		r.acquires(1)
		r.until(51 * time.Second)
		r.expect(generator.Regular)
		r.acquires(1)
	})
}

// TestRestartAdoptsValidLeases: the provider is not needed for it.
func TestRestartAdoptsValidLeases(t *testing.T) {
	onHost(t, func(s *setup) { s.MaxThroughput = 512 }, func(t *testing.T, r *rig) {
		r.start()
		r.until(4 * time.Minute)
		r.expect(generator.Regular)
		r.remote.fail(unreachable)
		r.kill()
		r.until(5 * time.Minute)
		r.restart()
		r.traffic(maxWait)
		r.until(renewal - time.Second)
		r.wantHeld(0, 1)
		r.acquires(1)
		r.until(term)
		r.wantKinds("regular")
		adopted := r.logs.FilterMessage("lease adopted from an earlier run").FilterField(zap.Bool("valid", true))
		if adopted.Len() != 2 {
			t.Errorf("%d valid leases logged as adopted", adopted.Len())
		}
	})
}

func TestRestartRenewsAtOnceWhenDue(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.start()
		r.until(time.Minute)
		r.kill()
		r.until(renewal + 20*time.Second)
		r.restart()
		r.expect(generator.Regular)
		r.pass(time.Second)
		r.acquires(2)
		r.wantHeld(1)
		r.wantReleased(0)
	})
}

// TestRestartServesFallbackFromExpiredLeases: a lease held when the daemon
// died is still its own.
func TestRestartServesFallbackFromExpiredLeases(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.start()
		r.until(time.Minute)
		r.expect(generator.Regular)
		r.kill()
		r.remote.fail(unreachable)
		r.until(term + time.Minute)
		r.restart()
		synctest.Wait()
		if id := r.expect(generator.FallbackCachedID); r.machineID(id) != 0 { // seed 000-2.3-1
			t.Errorf("fallback from machine ID %d", r.machineID(id))
		}
		r.traffic(maxWait)
		r.pass(20 * time.Second)
		r.remote.heal()
		r.pass(time.Minute)
		r.wantKinds("regular cached regular")
		if cached := r.keeper.Status().Cached; cached == nil || cached.ID != 0 {
			t.Errorf("the cached lease is %v", cached)
		}
	})
}

// TestStatus: what an operator sees, while all is well and while it is not.
func TestStatus(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.remote.jump(2 * time.Second)
		r.start()
		r.until(10 * time.Second)
		s := r.keeper.Status()
		if len(s.Held) != 1 || s.Cached != nil || s.Cause != nil || s.Failures != 0 || s.RetryIn != 0 || s.Offered != nil {
			t.Errorf("after the first grant: %+v", s)
		}
		if s.SkewMS != 2000 || s.Timeline != s.Held[0].Timeline() {
			t.Errorf("skew %d ms, timeline %+v", s.SkewMS, s.Timeline)
		}
		r.remote.fail(unreachable)
		r.until(term - 10*time.Second)
		s = r.keeper.Status()
		if s.Cause != errDown || s.Failures != 6 || s.RetryIn <= 0 || s.RetryIn > 32*time.Second {
			t.Errorf("after some failures: %+v", s)
		}
	})
}

// TestNaps: a keeper with nothing to do does next to nothing, and yet looks at
// the clock every second.
func TestNaps(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		steps := 0
		for r.elapsed() < 3*term {
			nap := r.keeper.Step(t.Context())
			if nap < minNap || nap > pollInterval {
				t.Fatalf("at %v: a nap of %v", r.elapsed(), nap)
			}
			steps++
			time.Sleep(nap)
		}
		if most := int(3*term/time.Second) + 300; steps > most {
			t.Errorf("%d steps in %v", steps, 3*term)
		}
		r.acquires(4)
	})
}
