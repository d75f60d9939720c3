package keeper

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/state"
)

// TestLeasesAreUsedWhileTheStoreIsBroken: it costs a restart its leases, and
// callers nothing.
func TestLeasesAreUsedWhileTheStoreIsBroken(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.store.broken.Store(true)
		r.start()
		r.traffic(2*travelTime + maxWait)
		r.until(2 * term)
		r.wantKinds("regular")
		r.wantCalls(providertest.OpRelease, 0)
		logged := len(r.logs.FilterMessageSnippet("live state cannot be saved").All())
		if r.seen.stateFailed == 0 || logged != r.seen.stateFailed {
			t.Errorf("%d failures are counted, %d logged", r.seen.stateFailed, logged)
		}
	})
}

// TestStoreIsWrittenOnceItCanBe: a lease that was lost while the disk was full
// must not come back to life in a crash after it.
func TestStoreIsWrittenOnceItCanBe(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.start()
		r.until(15 * time.Second)
		r.store.broken.Store(true)
		r.remote.takeAway(r.keeper.Status().Held[0])
		r.until(time.Minute)
		r.wantHeld(1)
		if n := r.seen.stateFailed; n < 4 || n > 8 {
			t.Errorf("%d tries to write the store", n)
		}
		if leases := r.store.leases(); len(leases) != 0 {
			t.Fatalf("a crash would bring back %v", leases)
		}
		r.store.broken.Store(false)
		r.pass(saveInterval + time.Second)
		if leases := r.store.leases(); len(leases) != 1 || leases[0].ID != 1 {
			t.Errorf("stored: %v", leases)
		}
		r.restart()
		r.expect(generator.Regular)
	})
}

// TestReleaseThatFailsIsNotRepeated: the lease is gone for good; whether the
// provider has heard is not known.
func TestReleaseThatFailsIsNotRepeated(t *testing.T) {
	for name, f := range map[string]providertest.Fault{"refused connection": unreachable, "answer lost": answerLost, "no answer": hanging} {
		t.Run(name, hosted(nil, func(t *testing.T, r *rig) {
			r.remote.fail(f, providertest.OpRelease)
			r.start()
			r.traffic(2*travelTime + maxWait)
			r.until(term + time.Minute)
			r.wantHeld(1)
			r.wantCalls(providertest.OpRelease, 1)
			r.wantLogged("lease not released; it runs out by itself", 1)
			r.wantKinds("regular")
		}))
	}
}

func TestGracefulShutdown(t *testing.T) {
	onHost(t, func(s *setup) { s.MaxThroughput = 1024 }, func(t *testing.T, r *rig) {
		r.start()
		r.until(time.Minute)
		r.ask(5000)
		last, now := r.lastMS(), r.host.ms()
		r.shutdown()
		released := r.remote.of(providertest.OpRelease)
		if len(released) != 4 { // seed 000-11.2-1
			t.Fatalf("released: %v", released)
		}
		granted := r.acquires(1)[0].leases
		for i, c := range released {
			l := granted[i]
			if c.err != nil || c.back.ID != l.ID || !c.back.Signed(l.Secret) {
				t.Errorf("%v", c)
			}
			if c.back.TimestampMS < last || c.back.TimestampMS < now {
				t.Errorf("stamped %d, the last ID embeds %d, and the shutdown began at %d", c.back.TimestampMS, last, now)
			}
		}
		if leases := r.store.leases(); len(leases) != 0 {
			t.Errorf("the store holds %v", leases)
		}
		r.pass(time.Millisecond)
		r.wantTaken(0)
		r.wantLogged("worker id released", 4)
		// The next run begins with the rest: nothing but the timeline.
		saved := r.store.Load()
		if saved.Source != state.SourceLease || saved.Timeline != granted[0].Timeline() {
			t.Errorf("the store has %+v", saved)
		}
	})
}

// TestShutdownWithAProviderThatHangs: it keeps the daemon from stopping for one
// call's deadline, and not once per lease; nor longer than the context. All
// leases stay for the next start.
func TestShutdownWithAProviderThatHangs(t *testing.T) {
	for patience, want := range map[time.Duration]time.Duration{10 * time.Second: 3 * time.Second, time.Second: time.Second} {
		onHost(t, func(s *setup) { s.MaxThroughput = 1024 }, func(t *testing.T, r *rig) {
			r.start()
			r.until(time.Second)
			before := r.store.leases()
			r.remote.fail(hanging)
			r.stop()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			began := time.Now()
			r.keeper.Shutdown(ctx)
			if took := time.Since(began); took != want {
				t.Errorf("it took %v, want %v", took, want)
			}
			r.wantCalls(providertest.OpRelease, 0)
			if leases := both(r.gen.published(), nil); len(leases) != 0 || !slices.Equal(r.store.leases(), before) {
				t.Errorf("published %v, stored %v, want %v", leases, r.store.leases(), before)
			}
		})
	}
}

// TestShutdownDuringAnAcquire: the keeper does not wait for an answer that may
// never come.
func TestShutdownDuringAnAcquire(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.remote.fail(hanging)
		r.start()
		r.until(time.Second)
		began := time.Now()
		r.shutdown()
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		if failed := r.logs.FilterLevelExact(zap.ErrorLevel).All(); len(failed) != 0 {
			t.Errorf("to be stopped is no error: %v", failed[0].Message)
		}
		if n := r.seen.results(ResultUnavailable) + r.seen.results(ResultTimeout); n != 0 {
			t.Errorf("to be stopped counts as %d failures", n)
		}
	})
}

// TestReleaseCoversTheLastEmbeddedTimestamp: the clock has gone back since.
func TestReleaseCoversTheLastEmbeddedTimestamp(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.start()
		r.until(time.Minute)
		r.expect(generator.Regular)
		last := r.lastMS()
		r.host.jump(-20 * time.Second)
		r.shutdown()
		released := r.remote.of(providertest.OpRelease)
		if len(released) != 1 || released[0].err != nil || released[0].back.TimestampMS != last {
			t.Errorf("released: %v, and the last ID embeds %d", released, last)
		}
		if record := r.remote.records()[0]; record.End != last+1 { // seed 000-4.4-3
			t.Errorf("the slot is free from %d on", record.End)
		}
	})
}

// TestReleaseFarFromTheProvidersClock: the provider refuses a time more than 30 s from its
// time, and the lease is kept for the next start. A provider that reads this host's clock
// knows no other time. The clocks may have met since the grant.
func TestReleaseFarFromTheProvidersClock(t *testing.T) {
	for name, c := range map[string]struct {
		off, meet time.Duration
		hostClock bool
		released  bool
	}{
		"40 s ahead":                   {40 * time.Second, 0, false, false},
		"29 s ahead":                   {29 * time.Second, 0, false, true},
		"29 s behind":                  {-29 * time.Second, 0, false, true},
		"40 s behind":                  {-40 * time.Second, 0, false, false},
		"40 s ahead at the grant":      {40 * time.Second, 40 * time.Second, false, true},
		"40 s behind at the grant":     {-40 * time.Second, -40 * time.Second, false, true},
		"whatever off, the same clock": {time.Hour, 0, true, true},
	} {
		t.Run(name, hosted(func(s *setup) { s.clockOff, s.hostClock = c.off, c.hostClock }, func(t *testing.T, r *rig) {
			r.start()
			r.until(time.Minute)
			r.expect(generator.Regular)
			r.remote.jump(c.meet)
			r.shutdown()
			var refusal error
			if !c.released {
				refusal = provider.ErrTimestampSkew
			}
			if released := r.remote.of(providertest.OpRelease); len(released) != 1 || !errors.Is(released[0].err, refusal) {
				t.Errorf("released: %v, want one with the error %v", released, refusal)
			}
			if n := len(r.store.leases()); (n == 0) != c.released {
				t.Errorf("the store holds %d leases for the next start", n)
			}
		}))
	}
}

// TestLostLeaseIsDroppedAtOnce, and replaced at once: the rate limit is for
// keepers that have what they asked for.
func TestLostLeaseIsDroppedAtOnce(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.start()
		r.until(15 * time.Second)
		r.expect(generator.Regular)
		r.remote.takeAway(r.keeper.Status().Held[0])
		r.until(23 * time.Second) // verified every 11 s
		r.wantHeld(1)             // seeds 001-22 and 003-2-4
		if second := r.acquires(2)[1]; second.at != 22*time.Second+2*travelTime {
			t.Errorf("replaced at %v", second.at)
		}
		r.expect(generator.Regular)
		if len(r.seen.lost) != 1 || r.seen.lost[0] != "taken_over" {
			t.Errorf("counted as lost: %v", r.seen.lost)
		}
		entries := r.logged("lease lost: the provider no longer knows it as ours")
		if len(entries) != 1 || entries[0].Level != zap.ErrorLevel {
			t.Errorf("logged: %v", entries)
		}
		if leases := r.store.leases(); len(leases) != 1 || leases[0].ID != 1 {
			t.Errorf("stored: %v", leases)
		}
		r.wantCalls(providertest.OpRelease, 0)
	})
}

// TestLostCachedLeaseIsDropped: it is the slot that fallback IDs come from.
func TestLostCachedLeaseIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(s *setup) {
			// The provider has never heard of it.
			s.saved.Cached = leaseOfEarlierLife(s)
			s.saved.Source = state.SourceLease
		})
		r.remote.fail(unreachable, providertest.OpAcquire)
		r.start() // and is asked at once, since the lease is of an earlier life
		r.until(time.Second)
		r.expect(generator.FallbackRandomID)
		if len(r.gen.published()) != 0 || len(r.store.leases()) != 0 || r.keeper.Status().Cached != nil {
			t.Errorf("published %v, stored %v", r.gen.published(), r.store.leases())
		}
		if len(r.seen.lost) != 1 {
			t.Errorf("counted as lost: %v", r.seen.lost)
		}
	})
}

// TestLeasesAreKeptWhenNothingIsKnown: a verification that fails, is not
// possible or not wanted says nothing against a lease.
func TestLeasesAreKeptWhenNothingIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*setup)
		fault  providertest.Fault
		asked  bool
	}{
		"provider away":          {fault: unreachable, asked: true},
		"provider cannot tell":   {change: func(s *setup) { s.plain = true }},
		"not to be verified":     {change: func(s *setup) { s.VerifyEvery = 0 }},
		"nothing to be verified": {change: func(s *setup) { s.saved.Cached, s.terms.Quarantine = nil, 0 }, asked: true},
	} {
		t.Run(name, hosted(c.change, func(t *testing.T, r *rig) {
			r.remote.fail(c.fault, providertest.OpVerify)
			r.start()
			r.traffic(2*travelTime + maxWait)
			r.until(2 * term)
			r.wantKinds("regular")
			if asked := len(r.remote.of(providertest.OpVerify)) > 0; asked != c.asked {
				t.Errorf("%d verifications", len(r.remote.of(providertest.OpVerify)))
			}
			if len(r.seen.lost) != 0 {
				t.Errorf("counted as lost: %v", r.seen.lost)
			}
		}))
	}
}
