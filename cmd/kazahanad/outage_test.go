package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// moveAway puts the provider's file out of reach until mend is called.
func (s *site) moveAway() (mend func()) {
	s.T.Helper()
	testkit.Rename(s.T, s.Leases(), s.Leases()+".away")
	return func() { testkit.Rename(s.T, s.Leases()+".away", s.Leases()) }
}

func TestProviderGone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start(s.Brief()...)
	c := s.Dial()
	last := c.ID()
	mend := s.moveAway()
	c.AwaitMode(testkit.FallbackModes...)
	await.Eventually(t, "the status says why", func() bool {
		svc := c.Status().Services[0]
		return strings.Contains(svc.Cause, s.Leases()) && svc.Failures > 0
	})
	id := c.ID()
	if in := s.Inspected(id); in.Kind != snowflake.KindFallback || id <= last { // seeds 000-3.2-2 and 000-10.4-1
		t.Errorf("after %d came %+v", last, in)
	}
	c.Refused(wire.CodeLeaseAcquisition, map[string]any{"regular_only": true})
	s.Kazahanad("id", "--regular-only").Fails(t, exitFailure, "LEASE_ACQUISITION", "cause=")
	if said := s.Kazahanad("health").OK(t); !strings.HasPrefix(said, "ok: fallback") {
		t.Errorf("health says %q", said)
	}
	mend()
	c.AwaitMode("regular")
	if next := c.RegularID(); s.Inspected(next).Kind != snowflake.KindRegular || next <= id {
		t.Errorf("after %d came %d", id, next)
	}
	await.Eventually(t, "the status tells of no failure", func() bool {
		svc := c.Status().Services[0]
		return svc.Cause == "" && svc.Failures == 0
	})
}

func TestProviderGoneWithoutFallback(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start(s.Brief("--fallback", "none")...)
	c := s.Dial()
	c.ID()
	mend := s.moveAway()
	c.AwaitMode("unavailable")
	// Seeds 000-10.5-1 and 003-2-4.
	if cause, _ := c.Refused(wire.CodeLeaseAcquisition).Detail("cause"); !strings.Contains(cause, "sqlite:(path): ") || strings.Contains(cause, s.Dir) {
		t.Errorf("the cause is %q", cause)
	}
	s.Kazahanad("id").Fails(t, exitFailure, "LEASE_ACQUISITION", "cause=", "sqlite:(path): ")
	s.Kazahanad("health").Fails(t, exitFailure, "service default cannot issue IDs", s.Leases())
	mend()
	c.AwaitMode("regular")
	await.Eventually(t, "health is well", func() bool { return s.Kazahanad("health").Code == exitOK })
}

func TestStandalone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start("--provider", "none:")
	c := s.Dial()
	ids := c.IDs(2000)
	ids = append(ids, uint64(c.ID()))
	if !testkit.Ascending(ids) {
		t.Error("the IDs do not ascend")
	}
	if i := slices.IndexFunc(ids, func(id uint64) bool { return !testkit.IsFallback(id) }); i >= 0 {
		t.Errorf("%d is a regular ID", ids[i])
	}
	if in := s.Inspected(snowflake.ID(ids[0])); in.Kind != snowflake.KindFallback {
		t.Errorf("inspect says %+v", in)
	}
	c.Refused(wire.CodeNoProvider, map[string]any{"regular_only": true})
	s.Kazahanad("id", "--regular-only").Fails(t, exitFailure, "NO_PROVIDER")
	st := c.Status()
	if st.Mode != "fallback_random" || st.Scope != "none" || st.Provider != "none:" { // seed 000-3.2-1
		t.Errorf("status: mode %s, scope %s, provider %s", st.Mode, st.Scope, st.Provider)
	}
	s.Kazahanad("health").OK(t)
}

// A daemon that crashed while its provider is out of reach goes on with the
// lease that it had.
func TestAdoptedLeaseBridgesAnOutage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.StartLeaseServer("127.0.0.1:0", "--provider", "memory:")
	d := s.Start("--provider", server.URL())
	last := s.Dial().ID()
	held := s.Dial().Lease()
	d.Kill()
	server.Kill()
	d = s.Start("--provider", server.URL(), "--provider-timeout", "300ms")
	c := s.Dial()
	ids := c.IDs(1000)
	if snowflake.ID(ids[0]) <= last || slices.ContainsFunc(ids, testkit.IsFallback) {
		t.Errorf("after %d came %d to %d", last, ids[0], ids[len(ids)-1])
	}
	st := c.Status().Services[0]
	if len(st.Leases) != 1 || st.Leases[0].MachineID != held.MachineID || st.Mode != "regular" {
		t.Errorf("the lease was %+v, and the status is %+v", held, st)
	}
	if !strings.Contains(d.Log.String(), "lease adopted") {
		t.Error("the log does not say that a lease was adopted")
	}
}

// A file with a pool of another epoch will never do: that is a mistake in the
// configuration, which stops the start. A start does not wait for long to learn
// it, though: on a machine that is too busy the status has to tell.
func TestProviderWithAnotherEpoch(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.Start("--provider", "sqlite:"+s.Leases())
	s.Dial().ID()
	d.Terminate()
	fresh := newSite(t)
	d = fresh.Launch("--provider", "sqlite:"+s.Leases()+"?epoch=2025-06-01T00:00:00Z")
	var said string
	await.Eventually(t, "the daemon says what is wrong", func() bool {
		select {
		case <-d.Ended:
			said = d.FailsToStart(exitUsage)
			return true
		default:
		}
		got := fresh.Kazahanad("status", "--json")
		said = got.Stdout
		return strings.Contains(said, "fallback_random") && strings.Contains(said, "epoch 20")
	})
	for _, want := range []string{s.Leases(), "epoch", "2025-06-01", "2026-01-01"} {
		if !strings.Contains(said, want) {
			t.Errorf("it said %q, want %q in it", said, want)
		}
	}
}
