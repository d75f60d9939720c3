package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// outages are ways to make the file unusable; each returns how to mend it.
var outages = map[string]func(t *testing.T, s *site) (mend func()){
	"moved away": func(t *testing.T, s *site) func() {
		testkit.Rename(t, s.Leases(), s.Leases()+".away")
		return func() { testkit.Rename(t, s.Leases()+".away", s.Leases()) }
	},
	"replaced by garbage": func(t *testing.T, s *site) func() {
		testkit.WriteFile(t, s.Path("garbage"), strings.Repeat("garbage ", 10_000))
		if err := os.Link(s.Leases(), s.Leases()+".away"); err != nil {
			t.Fatal(err)
		}
		testkit.Rename(t, s.Path("garbage"), s.Leases())
		return func() { testkit.Rename(t, s.Leases()+".away", s.Leases()) }
	},
	"locked by somebody": func(t *testing.T, s *site) func() { return testkit.LockLeases(t, s.Leases()) },
}

func TestProviderGone(t *testing.T) {
	for name, breakIt := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.Start(s.Brief("--provider-timeout", "300ms")...)
			c := s.Dial()
			last := c.ID()
			if s.Inspected(last).Kind != snowflake.KindRegular {
				t.Fatalf("the first ID %d is no regular one", last)
			}
			mend := breakIt(t, s)
			c.AwaitMode(testkit.FallbackModes...)
			await.Eventually(t, "the status says why", func() bool {
				svc := c.Status().Services[0]
				return strings.Contains(svc.Cause, s.Leases()) && svc.Failures > 0
			})
			id := c.ID()
			in := s.Inspected(id)
			if in.Kind != snowflake.KindFallback || id <= last {
				t.Errorf("after %d came %+v", last, in)
			}
			last = id
			c.Refused(wire.CodeLeaseAcquisition, map[string]any{"regular_only": true})
			s.Kazahanad("id", "--regular-only").Fails(t, exitFailure, "LEASE_ACQUISITION", "cause=")
			if said := s.Kazahanad("health").OK(t); !strings.HasPrefix(said, "ok: fallback") {
				t.Errorf("health says %q", said)
			}
			mend()
			c.AwaitMode("regular")
			id = c.ID()
			if in := s.Inspected(id); in.Kind != snowflake.KindRegular || id <= last {
				t.Errorf("after %d came %+v", last, in)
			}
			if svc := c.Status().Services[0]; svc.Cause != "" || svc.Failures != 0 {
				t.Errorf("once mended, the status is %+v", svc)
			}
		})
	}
}

func TestProviderGoneWithoutFallback(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start(s.Brief("--fallback", "none")...)
	c := s.Dial()
	last := c.ID()
	mend := outages["moved away"](t, s)
	c.AwaitMode("unavailable")
	refusal := c.Refused(wire.CodeLeaseAcquisition)
	if cause, _ := refusal.Detail("cause"); !strings.Contains(cause, s.Leases()) || refusal.Kind != wire.Failed {
		t.Errorf("the error is %q, want a cause that names the file", refusal)
	}
	s.Kazahanad("id").Fails(t, exitFailure, "LEASE_ACQUISITION", "cause=", s.Leases())
	s.Kazahanad("health").Fails(t, exitFailure, "service default cannot issue IDs", s.Leases())
	mend()
	c.AwaitMode("regular")
	if id := c.ID(); id <= last || testkit.IsFallback(uint64(id)) {
		t.Errorf("%d came after %d", id, last)
	}
	s.Kazahanad("health").OK(t)
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
	if st.Mode != "fallback_random" || st.Scope != "none" || st.Provider != "none:" {
		t.Errorf("status: mode %s, scope %s, provider %s", st.Mode, st.Scope, st.Provider)
	}
	s.Kazahanad("health").OK(t)
}

// What can never issue an ID does not start.
func TestStandaloneWithoutFallback(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	said := s.Launch("--provider", "none:", "--fallback", "none").FailsToStart(exitUsage)
	for _, want := range []string{"none:", "fallback", "default"} {
		if !strings.Contains(said, want) {
			t.Errorf("it said %q, want %q in it", said, want)
		}
	}
}

// adoptable are outages in which a daemon is restarted.
var adoptable = map[string]func(t *testing.T, s *site){
	"locked by somebody": func(t *testing.T, s *site) { testkit.LockLeases(t, s.Leases()) },
	"garbage at its path": func(t *testing.T, s *site) {
		testkit.Rename(t, s.Leases(), s.Leases()+".away")
		obstacles["garbage"](t, s.Leases())
	},
}

// A daemon that crashed while its provider is out of reach goes on with the
// lease that it had; one that starts afresh then has none.
func TestAdoptedLeaseBridgesAnOutage(t *testing.T) {
	for name, breakIt := range adoptable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			args := []string{"--provider", "sqlite:" + s.Leases(), "--provider-timeout", "300ms"}
			d := s.Start(args...)
			last := s.Dial().ID()
			held := s.Dial().Lease()
			d.Kill()
			breakIt(t, s)

			d = s.Start(args...)
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
			d.Kill()

			fresh := newSite(t)
			fresh.Start(args...)
			other := fresh.Dial()
			if id := other.ID(); !testkit.IsFallback(uint64(id)) || other.Status().Mode != "fallback_random" {
				t.Errorf("without a state to adopt from it made %d", id)
			}
		})
	}
}
