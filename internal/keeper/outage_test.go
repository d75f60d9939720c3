package keeper

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// gaps is the times between the calls.
func gaps(calls []call) (gaps []time.Duration) {
	for i := 1; i < len(calls); i++ {
		gaps = append(gaps, calls[i].at-calls[i-1].at)
	}
	return gaps
}

func seconds(n ...time.Duration) []time.Duration {
	for i := range n {
		n[i] *= time.Second
	}
	return n
}

// requestIDs is the request IDs of the calls, each once for every time that
// it follows another one.
func requestIDs(calls []call) (ids []string) {
	for _, c := range calls {
		ids = append(ids, c.ask.RequestID)
	}
	return slices.Compact(ids)
}

func TestProviderDownAtStart(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.remote.fail(unreachable)
		r.start()
		// The failure is known at once, so that even the first request does not
		// wait for its whole startup_wait.
		r.traffic(maxWait)
		r.until(20 * time.Second)
		if why := r.gen.why(); !errors.Is(why, errDown) {
			t.Errorf("callers are told %v", why)
		}
		r.remote.heal()
		r.until(40 * time.Second)
		r.wantKinds("random regular")
		// Tries are at 0, 1, 3, 7, 15 and 31 s.
		if back := r.stretch(1).from; back > 32*time.Second {
			t.Errorf("regular again at %v", back)
		}
		if why := r.gen.why(); why != nil {
			t.Errorf("callers are still told %v", why)
		}
		r.wantResults(ResultUnavailable, 5)
		r.wantLogged("failed to allocate worker id", 5)
	})
}

func TestProviderDownAtRenewal(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.start()
		r.traffic(2*travelTime + maxWait)
		r.until(8 * time.Minute)
		r.remote.fail(unreachable)
		r.until(15 * time.Minute)
		r.remote.heal()
		r.until(17 * time.Minute)
		r.wantKinds("regular cached regular") // seed 000-5.7-2
		outage := r.stretch(1)
		// Seeds 003-2-4, 003-3.2-6 and 003-4.3-4.
		if first := outage.from; first < term || first > term+100*time.Millisecond {
			t.Errorf("fallback from %v on, though the lease ends at %v", first, term+travelTime)
		}
		if back := r.stretch(2).from; back > 16*time.Minute+time.Second {
			t.Errorf("regular again at %v", back)
		}
		if got := r.machineID(outage.last); got != 0 { // seed 000-2.3-1
			t.Errorf("fallback from machine ID %d, and the last lease was 0", got)
		}
		// Six tries fail before the lease's end, five after it.
		r.wantLogged(fails, 6)
		r.wantLogged(breaks, 5)
	})
}

// TestBackoffFollowsTheTable is seed 000, section 5.7, end to end.
func TestBackoffFollowsTheTable(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.remote.fail(unreachable)
		r.start()
		r.until(4*time.Minute + 10*time.Second)
		// Seed 000-5.7-1.
		if got, want := gaps(r.remote.of(providertest.OpAcquire)), seconds(1, 2, 4, 8, 16, 32, 60, 60, 60); !slices.Equal(got, want) {
			t.Errorf("tries after %v, want %v", got, want)
		}
	})
}

func TestSuccessResetsBackoff(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.remote.fail(unreachable)
		r.start()
		r.until(10 * time.Second)
		r.remote.heal()
		r.until(20 * time.Second)
		if s := r.keeper.Status(); s.Failures != 0 || s.Cause != nil {
			t.Errorf("after the success: %+v", s)
		}
		r.acquires(5) // at 0, 1, 3, 7 and 15 s
		r.remote.fail(unreachable)
		r.until(renewal + 25*time.Second)
		if got, want := gaps(r.acquires(9)[5:]), seconds(1, 2, 4); !slices.Equal(got, want) { // seed 000-5.7-1
			t.Errorf("tries after %v, want %v", got, want)
		}
	})
}

// TestHangingProvider: a caller that asks for an ID does not notice that the provider takes
// connections and never answers, neither at the start nor later.
func TestHangingProvider(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.remote.fail(hanging)
		r.start()
		r.traffic(r.setup.startupWait + maxWait)
		r.until(20 * time.Second)
		// A call takes its 3 s, then comes the backoff.
		if got, want := gaps(r.remote.of(providertest.OpAcquire)), seconds(4, 5, 7); !slices.Equal(got, want) {
			t.Errorf("tries after %v, want %v", got, want)
		}
		r.wantResults(ResultTimeout, 4)
		r.remote.heal()
		r.until(8 * time.Minute)
		r.remote.fail(hanging)
		r.until(15 * time.Minute)
		r.remote.heal()
		r.until(17 * time.Minute)
		r.wantKinds("random regular cached regular") // seed 000-5.4-2
	})
}

func TestFullPoolIsTriedAgain(t *testing.T) {
	onHost(t, func(s *setup) { s.terms.IDs.End = 1 }, func(t *testing.T, r *rig) {
		other, err := r.remote.inner.Acquire(t.Context(), provider.AcquireRequest{Service: service})
		must.Succeed(t, err)
		r.start()
		r.traffic(2*travelTime + maxWait)
		r.until(10 * time.Second)
		if _, ok := errors.AsType[*provider.FullError](r.keeper.Status().Cause); !ok {
			t.Errorf("the cause is %v", r.keeper.Status().Cause)
		}
		r.remote.takeAway(other[0])
		r.until(20 * time.Second)
		r.wantKinds("random regular") // seed 000-10.4-2
		r.wantResults(ResultRefused, 4)
		// Nothing was granted, so there is nothing to ask for again.
		r.wantRequests(r.acquires(5), 5)
	})
}

// TestFenceIsWaitedFor: a provider that grants nothing for a while is asked as often as one that is
// away. An operator may lift the fence at any time.
func TestFenceIsWaitedFor(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		until := 5*time.Minute + 30*time.Second
		r.remote.fail(providertest.Fail(&provider.FencedError{UntilMS: startMS + until.Milliseconds(), Reason: "restarted"}), providertest.OpAcquire)
		r.start()
		r.traffic(maxWait)
		r.until(until)
		r.remote.heal()
		r.until(until + time.Minute + time.Second)
		tries := len(r.remote.of(providertest.OpAcquire))
		if tries < 10 || tries > 13 { // after 1, 2, 4, ... s, then every minute
			t.Errorf("asked %d times", tries)
		}
		r.wantResults(ResultFenced, tries-1)
		r.wantKinds("random regular")
	})
}

// TestConflictLeadsToANewRequestID: the leases of the first request have ended
// before the keeper heard of them.
func TestConflictLeadsToANewRequestID(t *testing.T) {
	onHost(t, func(s *setup) { s.terms.Term, s.terms.Quarantine = 10*time.Second, 10*time.Second }, func(t *testing.T, r *rig) {
		r.remote.fail(answerLost)
		r.start()
		r.until(2 * time.Second)
		r.remote.fail(unreachable)
		r.until(12 * time.Second)
		r.remote.heal()
		r.until(35 * time.Second)
		r.expect(generator.Regular)
		calls := r.acquires(8) // at 0, 1, 3, 7 and 15 s, at once again, and to renew
		if !errors.Is(calls[4].err, provider.ErrConflict) {
			t.Errorf("the fifth: %v", calls[4].err)
		}
		r.wantRequests(calls[:5], 1)
		if calls[5].ask.RequestID == calls[4].ask.RequestID || calls[5].err != nil {
			t.Errorf("after the conflict: %v", calls[5])
		}
		if calls[5].at-calls[4].at > time.Second/2 || r.seen.results(ResultRefused) != 0 {
			t.Errorf("the conflict counted as a failure: asked again after %v", calls[5].at-calls[4].at)
		}
	})
}

// TestPruneOnlyOnSuccess: two leases end while the provider is away. Both stay
// until there is something else to live from.
func TestPruneOnlyOnSuccess(t *testing.T) {
	onHost(t, func(s *setup) { s.MaxThroughput = 512 }, func(t *testing.T, r *rig) {
		r.start()
		r.traffic(2*travelTime + maxWait)
		r.until(8 * time.Minute)
		r.remote.fail(unreachable)
		r.until(12 * time.Minute)
		r.wantHeld(0, 1) // seed 000-5.9-1
		if n := len(r.store.Load().Held); n != 2 {
			t.Errorf("%d leases in the store", n)
		}
		r.wantCalls(providertest.OpRelease, 0)
		r.remote.heal()
		r.until(14 * time.Minute)
		r.wantHeld(2, 3)
		saved := r.store.Load()
		released := r.remote.of(providertest.OpRelease)
		if saved.Cached == nil || len(released) != 1 {
			t.Fatalf("cached %v, released %v", saved.Cached, released)
		}
		if saved.Cached.ID+released[0].back.ID != 1 {
			t.Errorf("machine ID %d is cached, and %d released", saved.Cached.ID, released[0].back.ID)
		}
		r.wantKinds("regular cached regular")
	})
}

// TestLastPrunedBecomesTheCachedLease: of leases with different ends it is the one with the last
// end, and the others go back.
func TestLastPrunedBecomesTheCachedLease(t *testing.T) {
	onHost(t, func(s *setup) { s.MaxThroughput, s.terms.MaxLeasesPerAcquire = 512, 1 }, func(t *testing.T, r *rig) {
		r.start()
		r.until(3 * time.Minute)
		r.ask(5000) // used up: a second lease, from now on
		r.pass(time.Second)
		r.wantHeld(0, 1)
		r.kill()
		r.until(15 * time.Minute)
		r.restart()
		r.pass(time.Second)
		r.wantHeld(2)
		if cached := r.store.Load().Cached; cached == nil || cached.ID != 1 { // seed 000-5.9-2
			t.Errorf("cached is %v", cached)
		}
		if released := r.remote.of(providertest.OpRelease); len(released) != 1 || released[0].back.ID != 0 {
			t.Errorf("released: %v", released)
		}
	})
}

// TestCachedLeaseIsReplacedAndHandedBack: the next outage's last lease takes
// the place of the one before, which then goes back, if it is still reserved.
func TestCachedLeaseIsReplacedAndHandedBack(t *testing.T) {
	for name, c := range map[string]struct {
		quarantine time.Duration
		releases   int
		kinds      string
	}{
		"still reserved":     {2 * time.Hour, 1, "regular cached regular cached regular"},
		"nobody's for long":  {term, 0, "regular cached uncertain regular cached uncertain regular"},
		"without quarantine": {0, 0, "regular uncertain regular uncertain regular"},
	} {
		t.Run(name, hosted(func(s *setup) { s.terms.Quarantine = c.quarantine }, func(t *testing.T, r *rig) {
			r.start()
			r.traffic(2*travelTime + maxWait)
			for i := range 2 {
				began := time.Duration(i) * 30 * time.Minute
				r.until(began + 8*time.Minute)
				r.remote.fail(unreachable)
				r.until(began + 25*time.Minute)
				r.remote.heal()
				r.until(began + 28*time.Minute)
			}
			r.wantKinds(c.kinds)
			cached := r.store.Load().Cached
			if cached == nil || cached.Created < startMS+(20*time.Minute).Milliseconds() {
				t.Errorf("cached is %v", cached)
			}
			var releases []call
			for _, release := range r.remote.of(providertest.OpRelease) {
				if release.at > 50*time.Minute {
					releases = append(releases, release)
				}
			}
			if len(releases) != c.releases {
				t.Errorf("released: %v", releases)
			}
		}))
	}
}

// TestGoodLeasesAmongBadOnes: the good ones are used, and count as a success.
func TestGoodLeasesAmongBadOnes(t *testing.T) {
	onHost(t, func(s *setup) { s.MaxThroughput = 1024 }, func(t *testing.T, r *rig) {
		r.remote.answer(func(leases []lease.Lease) []lease.Lease {
			leases[0].Secret = ""         // malformed
			leases[1].Created -= 600_000  // ended
			leases[1].Expired -= 600_000  //
			leases[3].EpochMS -= 86400000 // another timeline
			return leases
		})
		r.start()
		r.traffic(2*travelTime + maxWait)
		r.until(10 * time.Second)
		r.wantHeld(2)
		r.wantKinds("regular")
		if s := r.keeper.Status(); s.Failures != 0 || s.Cause != nil {
			t.Errorf("%+v", s)
		}
		if offered := r.store.Load().Offered; offered == nil {
			t.Error("the refused timeline is not remembered for the operator")
		}
		r.acquires(1)
	})
}

// TestHangingVerifyAndRelease: the operations beside the acquire may hang too. They
// are waited for once, and not once per lease, delay the renewal, which has a minute,
// and nothing else.
func TestHangingVerifyAndRelease(t *testing.T) {
	onHost(t, func(s *setup) { s.MaxThroughput = 1024 }, func(t *testing.T, r *rig) {
		r.start()
		r.traffic(2*travelTime + maxWait)
		r.until(time.Second)
		r.remote.fail(hanging, providertest.OpVerify, providertest.OpRelease)
		r.until(3 * term)
		r.wantKinds("regular")
		if len(r.remote.of(providertest.OpVerify)) < 100 || len(r.remote.of(providertest.OpRelease)) != 3 {
			t.Errorf("%d verifications, %d releases", len(r.remote.of(providertest.OpVerify)), len(r.remote.of(providertest.OpRelease)))
		}
		r.acquires(4)
	})
}

// TestRetryAfterIsHonoured: the longer wait holds, the backoff's or the provider's, which may
// mean milliseconds and say hours. This host's chance is 0.
func TestRetryAfterIsHonoured(t *testing.T) {
	for after, want := range map[time.Duration][]time.Duration{5 * time.Second: seconds(5, 5, 5, 8, 16), 1000 * time.Hour: seconds(600)} {
		t.Run(after.String(), hosted(nil, func(t *testing.T, r *rig) {
			r.remote.fail(providertest.Fail(&provider.BusyError{RetryAfter: after, Reason: "too many requests"}), providertest.OpAcquire)
			r.start()
			for _, gap := range want {
				r.pass(gap)
			}
			r.pass(time.Second)
			if got := gaps(r.remote.of(providertest.OpAcquire)); !slices.Equal(got, want) {
				t.Errorf("tries after %v, want %v", got, want)
			}
			r.wantResults(ResultRefused, len(want)+1)
			r.wantRequests(r.acquires(len(want)+1), 1) // a part may have been granted
		}))
	}
}

// TestLostAnswerIsAskedForAgain: the grant was made, and the keeper does not know. The same
// request ID brings it to light, rather than take a second slot.
func TestLostAnswerIsAskedForAgain(t *testing.T) {
	for name, lost := range map[string]providertest.Fault{"connection lost": answerLost, "timeout": {Lose: context.DeadlineExceeded}} {
		t.Run(name, hosted(func(s *setup) { s.MaxThroughput = 512 }, func(t *testing.T, r *rig) {
			r.remote.fail(lost)
			r.start()
			r.until(5 * time.Second)
			r.remote.heal()
			r.until(10 * time.Second)
			r.expect(generator.Regular)
			r.wantRequests(r.acquires(4), 1) // at 0, 1, 3 and 7 s
			if n := len(r.remote.records()); n != 2 {
				t.Errorf("%d slots taken", n)
			}
			r.wantHeld(0, 1)
			// A late answer says nothing about the clocks: the grant may be as old as the first request.
			if skew := r.keeper.Status().SkewMS; skew != 0 {
				t.Errorf("the skew is given as %d ms", skew)
			}
			// The next request is another one.
			r.until(renewal + time.Second)
			r.wantRequests(r.acquires(5), 2)
		}))
	}
}

// TestUselessAnswers: nothing of what a broken provider says is used, nor does it stop
// the keeper.
func TestUselessAnswers(t *testing.T) {
	hour := time.Hour.Milliseconds()
	malformed := func(spoil func(*lease.Lease)) providertest.Fault {
		return providertest.Fault{Change: func(leases []lease.Lease) []lease.Lease { spoil(&leases[0]); return leases }}
	}
	for name, c := range map[string]struct {
		answer providertest.Fault
		cause  error
		back   int // releases
	}{
		"malformed":      {malformed(func(l *lease.Lease) { l.ID = -1 }), lease.ErrMalformed, 0},
		"without secret": {malformed(func(l *lease.Lease) { l.Secret = "" }), lease.ErrMalformed, 0},
		"only zeros":     {malformed(func(l *lease.Lease) { *l = lease.Lease{} }), lease.ErrMalformed, 0},
		"empty":          {providertest.Fault{Change: func([]lease.Lease) []lease.Lease { return nil }}, lease.ErrMalformed, 0},
		"of an hour ago": {providertest.Change(func(l *lease.Lease) {
			l.Created, l.Expired, l.ReservedUntil = l.Created-hour, l.Expired-hour, l.ReservedUntil-hour
		}), errNoCover, 3},
	} {
		t.Run(name, hosted(nil, func(t *testing.T, r *rig) {
			r.remote.fail(c.answer, providertest.OpAcquire)
			r.start()
			r.traffic(2*travelTime + maxWait)
			r.until(5 * time.Second)
			if published, stored := r.gen.published(), r.store.leases(); len(published)+len(stored) != 0 {
				t.Errorf("published %v, stored %v", published, stored)
			}
			if s := r.keeper.Status(); !errors.Is(s.Cause, c.cause) {
				t.Errorf("the cause is %v", s.Cause)
			}
			r.acquires(3) // at 0, 1 and 3 s, and a little
			r.wantResults(ResultRefused, 3)
			r.wantCalls(providertest.OpRelease, c.back)
			r.remote.heal()
			r.until(20 * time.Second)
			r.wantKinds("random regular")
		}))
	}
}

// TestTurnsGoOnWhileTheProviderIsDown: however a provider fails, the keeper never rests for longer
// than a call may take and a poll. Only a call that does not heed its deadline ends the turns,
// for which the service manager's watchdog looks at them.
func TestTurnsGoOnWhileTheProviderIsDown(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		turned := func(within time.Duration) bool {
			before := r.keeper.Turns()
			r.pass(within)
			return r.keeper.Turns() != before
		}
		r.start()
		r.pass(time.Minute)
		for _, fault := range []providertest.Fault{unreachable, hanging} {
			r.remote.fail(fault)
			for range 250 {
				if most := r.setup.CallTimeout + pollInterval; !turned(most) {
					t.Fatalf("no turn within %v, at %v", most, r.elapsed())
				}
			}
		}
		release := make(chan struct{})
		r.remote.heal()
		r.remote.answer(func(leases []lease.Lease) []lease.Lease {
			<-release
			return leases
		})
		r.pass(10 * time.Minute) // an acquire has begun by now
		if turned(10 * time.Minute) {
			t.Error("a keeper that is stuck turns")
		}
		close(release)
		if !turned(time.Second) {
			t.Error("the call came back, and the keeper did not go on")
		}
	})
}
