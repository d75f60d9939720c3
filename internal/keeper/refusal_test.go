package keeper

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
)

// wantGivenBack checks that every lease granted so far was given back as a lease that was never
// used: its slot is free from its own beginning on.
func (r *rig) wantGivenBack(n int) {
	r.t.Helper()
	released := r.remote.of(providertest.OpRelease)
	if len(released) != n {
		r.t.Fatalf("%d releases, want %d: %v", len(released), n, released)
	}
	records := r.remote.records()
	for _, c := range released {
		if created := records[c.back.ID].Lease.Created; c.back.TimestampMS != created || c.err != nil {
			r.t.Errorf("%v, want it stamped with the grant's own time %d", c, created)
		}
	}
	if taken := r.remote.taken(); taken != 0 {
		r.t.Errorf("%d slots are taken", taken)
	}
}

// TestClockAnHourOffBurnsNoSlot: a host with a wrong clock gets leases that it cannot use. It
// gives each one back as it was, backs off, and says so.
func TestClockAnHourOffBurnsNoSlot(t *testing.T) {
	for name, off := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, hosted(func(s *setup) { s.clockOff = off }, func(t *testing.T, r *rig) {
			r.start()
			r.until(40 * time.Second)
			r.expect(generator.FallbackRandomID)
			calls := r.acquires(6)
			for i, gap := range gaps(calls) {
				// The call and the release take their time.
				if want := backoff(i+1, time.Second, time.Minute, 0); gap < want || gap > want+5*travelTime {
					t.Errorf("try %d after %v, want %v", i+2, gap, want)
				}
			}
			r.wantGivenBack(6)
			r.wantRequests(calls, 6) // an old request would bring the same lease
			r.want("leases published", len(r.gen.published()), 0)
			r.wantResults(ResultRefused, 6)
			if cause := r.keeper.Status().Cause; !errors.Is(cause, errNoCover) {
				t.Errorf("the cause is %v", cause)
			}
			if got, want := r.seen.lastSkew(), -off; (got - want).Abs() > time.Second {
				t.Errorf("the skew is observed as %v, want %v", got, want)
			}
			// The next try after the clock has been set right succeeds.
			r.host.jump(-off)
			r.until(90 * time.Second)
			r.acquires(7)
			r.wantHeld(6)
		}))
	}
}

// TestClockThatJumpedAndIsConfirmed: this host's clock was an hour behind, and
// is set right. It is not believed at once, but the provider's next grant is
// evidence for it, and so is of use itself.
func TestClockThatJumpedAndIsConfirmed(t *testing.T) {
	onHost(t, func(s *setup) { s.clockOff = -time.Hour }, func(t *testing.T, r *rig) {
		r.start()
		r.until(10 * time.Second)
		r.host.jump(time.Hour)
		r.until(14 * time.Second)
		if r.clock.Astray() == 0 {
			t.Fatal("the clock is believed before a provider confirms it")
		}
		r.acquires(4)
		r.until(20 * time.Second) // the fifth is at 15 s
		r.acquires(5)
		r.wantHeld(4)
		r.expect(generator.Regular)
		if got := r.keeper.Status().SkewMS; got < -50 || got > 50 {
			t.Errorf("the clocks agree now, and the skew is given as %d ms", got)
		}
		r.shutdown()
		r.wantTaken(0)
	})
}

// TestClockOffByLittleIsNoReason to refuse a lease: a lease that begins ahead of the clock is
// used when the clock has reached it.
func TestClockOffByLittleIsNoReason(t *testing.T) {
	t.Run("provider ahead", hosted(nil, func(t *testing.T, r *rig) {
		r.remote.jump(20 * time.Second)
		r.start()
		r.traffic(r.setup.startupWait + maxWait)
		r.until(time.Minute)
		r.wantKinds("random regular") // seed 001-24
		if from := r.stretch(1).from; from < 20*time.Second || from > 20*time.Second+100*time.Millisecond {
			t.Errorf("the lease is used from %v on", from)
		}
		// It was enough: nothing else was asked for meanwhile.
		r.acquires(1)
		if got, want := r.seen.lastSkew(), 20*time.Second; got != want {
			t.Errorf("the skew is observed as %v, want %v", got, want)
		}
	}))
	t.Run("provider behind", hosted(nil, func(t *testing.T, r *rig) {
		r.remote.jump(-20 * time.Second)
		r.start()
		r.traffic(2*travelTime + maxWait)
		due := renewal + travelTime - 20*time.Second // on this host's clock
		r.until(due - time.Second)
		r.acquires(1)
		r.until(term)
		if second := r.acquires(2)[1]; !near(second.at, due) {
			t.Errorf("renewed at %v, want %v", second.at, due)
		}
		r.wantKinds("regular")
	}))
	t.Run("provider too far ahead", hosted(nil, func(t *testing.T, r *rig) {
		r.remote.jump(term/earlyPart + time.Second)
		r.start()
		r.until(10 * time.Second)
		r.wantHeld()
		r.wantGivenBack(4)
	}))
}

// TestLeaseInUseIsNotGivenBackAsRefused: an answer from a cache names
// a lease that is held already and due for renewal. It is of no use as a new
// lease, but the old one goes on, and must not be released behind its back.
func TestLeaseInUseIsNotGivenBackAsRefused(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.start()
		r.traffic(2*travelTime + maxWait)
		r.until(time.Second)
		first := r.acquires(1)[0].leases
		r.remote.answer(func([]lease.Lease) []lease.Lease { return first })
		r.until(term - time.Second)
		r.wantCalls(providertest.OpRelease, 0)
		r.wantHeld(0)
		r.until(12 * time.Minute)
		r.wantKinds("regular cached")
		r.wantCalls(providertest.OpRelease, 0)
		r.remote.heal()
		r.until(14 * time.Minute)
		r.wantKinds("regular cached regular")
	})
}

// otherEpoch is the default timeline with its start moved by d.
func otherEpoch(d time.Duration) snowflake.Timeline {
	tl := snowflake.DefaultTimeline()
	tl.EpochMS += d.Milliseconds()
	return tl
}

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// leaseOfEarlierLife is a lease that ended shortly before the test began.
func leaseOfEarlierLife(s *setup) *lease.Lease {
	l := s.terms.Lease(77, startMS-600_000-5_000, startMS-5_000, startMS+595_000, "the secret of an earlier life")
	return &l
}

// TestMismatchIsRefused: the provider has another epoch than the IDs made so
// far. Nothing of it is used, an operator is told, and fallback goes on.
func TestMismatchIsRefused(t *testing.T) {
	for name, other := range map[string]snowflake.Timeline{
		"earlier epoch": otherEpoch(-day),
		"later epoch":   otherEpoch(day),
		"other bit_ts":  {EpochMS: snowflake.DefaultEpochMS, BitTS: 42},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, func(s *setup) {
					s.saved = state.Saved{Timeline: snowflake.DefaultTimeline(), Source: state.SourceLease, Cached: leaseOfEarlierLife(s)}
					s.terms.Timeline = other
					s.terms.BitID = snowflake.ValueBits - other.BitTS - s.terms.BitSeq
					s.VerifyEvery = 0 // the provider never heard of the earlier life
				})
				r.start()
				r.traffic(maxWait + 2*travelTime + r.setup.startupWait)
				r.until(10 * time.Second)

				if got := gaps(r.acquires(4)); got[0] < time.Second || got[1] < 2*time.Second || got[2] < 4*time.Second {
					t.Errorf("tries after %v", got)
				}
				r.wantGivenBack(4)
				if leases := r.gen.published(); len(leases) != 1 || leases[0].ID != 77 {
					t.Errorf("published: %v", leases)
				}
				saved := r.store.Load()
				// Seed 000-4.2-3.
				if saved.Timeline != snowflake.DefaultTimeline() || len(saved.Held) != 0 || saved.Cached == nil {
					t.Errorf("the store has %+v", saved)
				}
				if saved.Offered == nil || *saved.Offered != other {
					t.Errorf("offered: %+v", saved.Offered)
				}
				if s := r.keeper.Status(); s.Offered == nil || *s.Offered != other || !errors.Is(s.Cause, errMismatch) {
					t.Errorf("status: %+v", s)
				}
				if r.seen.mismatches != 4 || r.seen.results(ResultMismatch) != 4 {
					t.Errorf("%d mismatches, %d acquires counted", r.seen.mismatches, r.seen.results(ResultMismatch))
				}
				entries := r.logged("epoch mismatch: lease refused")
				if len(entries) != 4 || entries[0].Level != zap.ErrorLevel { // seed 000-5.3-1
					t.Fatalf("logged: %v", entries)
				}
				if text, _ := entries[0].ContextMap()["error"].(string); !strings.Contains(text, "kazahanad state accept-epoch") {
					t.Errorf("the error does not say what to do: %s", text)
				}
				r.wantKinds("cached")
				last := r.stretch(0).last
				if age := r.host.ms() - r.timeline.UnixMS(last); r.machineID(last) != 77 || age < 0 || age > 50 {
					t.Errorf("the last fallback ID has machine ID %d and is %d ms old", r.machineID(last), age)
				}
			})
		})
	}
}

// TestFirstLeaseSetsTheTimeline: until a lease was seen the timeline is a
// guess. The first one may move it, as long as IDs go on increasing.
func TestFirstLeaseSetsTheTimeline(t *testing.T) {
	for name, c := range map[string]struct {
		other    snowflake.Timeline
		down     bool // IDs are made before the first lease comes
		accepted bool
	}{
		"as configured":                     {snowflake.DefaultTimeline(), true, true},
		"larger IDs":                        {otherEpoch(-year), true, true},
		"smaller IDs, none made so far":     {otherEpoch(day), false, true},
		"smaller IDs":                       {otherEpoch(day), true, false},
		"fewer bits of time, so larger IDs": {snowflake.Timeline{EpochMS: snowflake.DefaultEpochMS, BitTS: 40}, true, true},
		"more bits of time":                 {snowflake.Timeline{EpochMS: snowflake.DefaultEpochMS, BitTS: 42}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, func(s *setup) {
					s.terms.Timeline = c.other
					s.terms.BitID = snowflake.ValueBits - c.other.BitTS - s.terms.BitSeq
				})
				r.timeline = c.other
				if c.down {
					r.remote.fail(unreachable)
				}
				r.start()
				if c.down {
					synctest.Wait()
					r.expect(generator.FallbackRandomID)
					r.until(5 * time.Second)
					r.remote.heal()
				}
				r.until(10 * time.Second)
				saved := r.store.Load()
				if !c.accepted {
					r.expect(generator.FallbackRandomID)
					if saved.Offered == nil || *saved.Offered != c.other || saved.Timeline != snowflake.DefaultTimeline() || saved.Source != state.SourceConfig {
						t.Errorf("the store has %+v", saved)
					}
					if r.seen.mismatches == 0 {
						t.Error("the mismatch is not counted")
					}
					r.wantGivenBack(1)
					return
				}
				id := r.expect(generator.Regular) // greater than the fallback ID, as the rig checks
				if got := c.other.UnixMS(id); got != r.host.ms() {
					t.Errorf("on the lease's timeline the ID was made at %d, and it is %d", got, r.host.ms())
				}
				// Seeds 000-5.2-1 and 000-A.4-1.
				if saved.Timeline != c.other || saved.Source != state.SourceLease || len(saved.Held) != 1 {
					t.Errorf("the store has %+v", saved)
				}
				if r.keeper.Status().Timeline != c.other {
					t.Errorf("status has %+v", r.keeper.Status().Timeline)
				}
			})
		})
	}
}

// TestMoveThatACrashCutsShort: with anything in the store when the process dies, the next life's
// IDs are greater than all before, under any clock.
func TestMoveThatACrashCutsShort(t *testing.T) {
	for name, other := range map[string]snowflake.Timeline{
		"larger IDs":                        otherEpoch(-year),
		"smaller IDs":                       otherEpoch(day),
		"larger IDs, since time has passed": otherEpoch(3 * time.Second),
		"fewer bits of time":                {EpochMS: snowflake.DefaultEpochMS, BitTS: 40},
		"more bits of time":                 {EpochMS: snowflake.DefaultEpochMS, BitTS: 42},
		"more bits of time, and larger IDs": {EpochMS: snowflake.DefaultEpochMS - 2*year.Milliseconds(), BitTS: 42},
	} {
		t.Run(name, hosted(func(s *setup) {
			s.terms.Timeline = other
			s.terms.BitID = snowflake.ValueBits - other.BitTS - s.terms.BitSeq
		}, func(t *testing.T, r *rig) {
			r.timeline = other
			r.remote.fail(unreachable)
			r.start()
			r.expect(generator.FallbackRandomID)
			last := r.last
			writes := 0
			r.store.written = func() {
				writes++
				mark := r.store.Mark()
				next := r.store.Load().Settled(mark).Timeline
				if id := next.ID(max(mark, next.EpochMS), 0); id <= last {
					t.Errorf("after write %d, at %v: the next life goes on with %d after %d", writes, r.elapsed(), id, last)
				}
			}
			r.until(5 * time.Second)
			r.remote.heal()
			r.until(10 * time.Second)
			if writes < 2 {
				t.Errorf("%d writes", writes)
			}
			r.restart()
			r.one()
		}))
	}
}

// TestMoveOfANewService: a service that never made an ID has no mark after its move, so
// that a crash in it leaves the next life free to move.
func TestMoveOfANewService(t *testing.T) {
	onHost(t, func(s *setup) { s.terms.Timeline = otherEpoch(day) }, func(t *testing.T, r *rig) {
		r.timeline = otherEpoch(day)
		r.start()
		r.pass(time.Second)
		if mark := r.store.Mark(); mark != 0 || r.store.Load().Timeline != r.timeline {
			t.Errorf("the mark is %d, and the store has %+v", mark, r.store.Load())
		}
		r.restart()
		r.expect(generator.Regular)
	})
}

// TestRefusedLeasesHoldNothingUp: an answer with many leases of no use, from a provider
// with releases that hang, costs one call's deadline. With a provider that answers, all
// of them go back, however slowly, and verifies come first.
func TestRefusedLeasesHoldNothingUp(t *testing.T) {
	const many = 100
	for name, c := range map[string]struct {
		release providertest.Fault
		back    int
	}{
		"releases hang":     {hanging, 1},
		"releases succeed":  {providertest.Fault{}, many},
		"releases are slow": {providertest.Fault{Delay: 2 * time.Second}, many / 2},
	} {
		t.Run(name, hosted(func(s *setup) { s.MaxThroughput, s.terms.MaxLeasesPerAcquire = 256, many }, func(t *testing.T, r *rig) {
			r.start()
			r.until(time.Second)
			r.remote.faulty.Next(providertest.OpAcquire, providertest.Change(func(l *lease.Lease) { l.EpochMS++ }))
			r.remote.fail(c.release, providertest.OpRelease)
			r.stop()
			r.keeper.core.cfg.MaxThroughput = many * 256 // the next acquire takes them all
			r.start()
			r.until(renewal + 3*time.Minute)
			if n := len(r.remote.of(providertest.OpRelease)); n < c.back {
				t.Errorf("%d releases, want at least %d", n, c.back)
			}
			verifies := append(r.remote.of(providertest.OpVerify), call{at: r.elapsed()})
			for i := 1; i < len(verifies); i++ {
				if gap := verifies[i].at - verifies[i-1].at; gap > 16*time.Second {
					t.Errorf("no verify from %v to %v", verifies[i-1].at, verifies[i].at)
				}
			}
		}))
	}
}
