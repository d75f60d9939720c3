package main

import (
	"context"
	"database/sql"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/wire"
)

// brief has a provider's leases end soon, and failures be noticed and forgotten
// soon, so that an outage of a second shows.
func (s *site) brief(more ...string) []string {
	return append([]string{
		"--provider", "sqlite:" + s.leases() + "?term=2s&quarantine=1s",
		"--acquire-retry-interval", "100ms", "--acquire-retry-max-interval", "200ms", "--verify-interval", "500ms",
	}, more...)
}

// leases is the provider's file.
func (s *site) leases() string { return s.path("leases.db") }

// outages are ways to make the file unusable; each returns how to mend it.
var outages = map[string]func(t *testing.T, s *site) (mend func()){
	"moved away": func(t *testing.T, s *site) func() {
		rename(t, s.leases(), s.leases()+".away")
		return func() { rename(t, s.leases()+".away", s.leases()) }
	},
	"replaced by garbage": func(t *testing.T, s *site) func() {
		writeFile(t, s.path("garbage"), strings.Repeat("garbage ", 10_000))
		if err := os.Link(s.leases(), s.leases()+".away"); err != nil {
			t.Fatal(err)
		}
		rename(t, s.path("garbage"), s.leases())
		return func() { rename(t, s.leases()+".away", s.leases()) }
	},
	"locked by somebody": func(t *testing.T, s *site) func() { return lockLeases(t, s.leases()) },
}

// lockLeases holds the write lock of a SQLite file, as a process that hangs in
// the middle of a grant would.
func lockLeases(t *testing.T, path string) (unlock func()) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?mode=rw&_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(context.Background(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	over := false
	unlock = func() {
		if !over {
			over = true
			_, _ = conn.ExecContext(context.Background(), "ROLLBACK")
			_ = conn.Close()
			_ = db.Close()
		}
	}
	t.Cleanup(unlock)
	return unlock
}

func TestProviderGone(t *testing.T) {
	for name, breakIt := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.start(s.brief("--provider-timeout", "300ms")...)
			c := s.dial()
			last := c.id()
			if s.inspected(last).Kind != snowflake.KindRegular {
				t.Fatalf("the first ID %d is no regular one", last)
			}
			mend := breakIt(t, s)
			c.awaitMode(fallbackModes...)
			eventually(t, "the status says why", func() bool {
				svc := c.status().Services[0]
				return strings.Contains(svc.Cause, s.leases()) && svc.Failures > 0
			})
			id := c.id()
			in := s.inspected(id)
			if in.Kind != snowflake.KindFallback || id <= last {
				t.Errorf("after %d came %+v", last, in)
			}
			last = id
			c.refused(wire.CodeLeaseAcquisition, map[string]any{"regular_only": true})
			s.kazahanad("id", "--regular-only").fails(t, exitFailure, "LEASE_ACQUISITION", "cause=")
			if said := s.kazahanad("health").ok(t); !strings.HasPrefix(said, "ok: fallback") {
				t.Errorf("health says %q", said)
			}
			mend()
			c.awaitMode("regular")
			id = c.id()
			if in := s.inspected(id); in.Kind != snowflake.KindRegular || id <= last {
				t.Errorf("after %d came %+v", last, in)
			}
			if svc := c.status().Services[0]; svc.Cause != "" || svc.Failures != 0 {
				t.Errorf("once mended, the status is %+v", svc)
			}
		})
	}
}

func TestProviderGoneWithoutFallback(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start(s.brief("--fallback", "none")...)
	c := s.dial()
	last := c.id()
	mend := outages["moved away"](t, s)
	c.awaitMode("unavailable")
	refusal := c.refused(wire.CodeLeaseAcquisition)
	if cause, _ := refusal.Detail("cause"); !strings.Contains(cause, s.leases()) || refusal.Kind != wire.Failed {
		t.Errorf("the error is %q, want a cause that names the file", refusal)
	}
	s.kazahanad("id").fails(t, exitFailure, "LEASE_ACQUISITION", "cause=", s.leases())
	s.kazahanad("health").fails(t, exitFailure, "service default cannot issue IDs", s.leases())
	mend()
	c.awaitMode("regular")
	if id := c.id(); id <= last || isFallback(uint64(id)) {
		t.Errorf("%d came after %d", id, last)
	}
	s.kazahanad("health").ok(t)
}

func TestStandalone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start("--provider", "none:")
	c := s.dial()
	ids := c.ids(2000)
	ids = append(ids, uint64(c.id()))
	if !ascending(ids) {
		t.Error("the IDs do not ascend")
	}
	if i := slices.IndexFunc(ids, func(id uint64) bool { return !isFallback(id) }); i >= 0 {
		t.Errorf("%d is a regular ID", ids[i])
	}
	if in := s.inspected(snowflake.ID(ids[0])); in.Kind != snowflake.KindFallback {
		t.Errorf("inspect says %+v", in)
	}
	c.refused(wire.CodeNoProvider, map[string]any{"regular_only": true})
	s.kazahanad("id", "--regular-only").fails(t, exitFailure, "NO_PROVIDER")
	st := c.status()
	if st.Mode != "fallback_random" || st.Scope != "none" || st.Provider != "none:" {
		t.Errorf("status: mode %s, scope %s, provider %s", st.Mode, st.Scope, st.Provider)
	}
	s.kazahanad("health").ok(t)
}

// What can never issue an ID does not start.
func TestStandaloneWithoutFallback(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	said := s.launch("--provider", "none:", "--fallback", "none").failsToStart(exitUsage)
	for _, want := range []string{"none:", "fallback", "default"} {
		if !strings.Contains(said, want) {
			t.Errorf("it said %q, want %q in it", said, want)
		}
	}
}

// adoptable are outages in which a daemon is restarted.
var adoptable = map[string]func(t *testing.T, s *site){
	"locked by somebody": func(t *testing.T, s *site) { lockLeases(t, s.leases()) },
	"garbage at its path": func(t *testing.T, s *site) {
		rename(t, s.leases(), s.leases()+".away")
		obstacles["garbage"](t, s.leases())
	},
}

// A daemon that crashed while its provider is out of reach goes on with the
// lease that it had; one that starts afresh then has none.
func TestAdoptedLeaseBridgesAnOutage(t *testing.T) {
	for name, breakIt := range adoptable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			args := []string{"--provider", "sqlite:" + s.leases(), "--provider-timeout", "300ms"}
			d := s.start(args...)
			last := s.dial().id()
			held := s.dial().lease()
			d.kill()
			breakIt(t, s)

			d = s.start(args...)
			c := s.dial()
			ids := c.ids(1000)
			if snowflake.ID(ids[0]) <= last || slices.ContainsFunc(ids, isFallback) {
				t.Errorf("after %d came %d to %d", last, ids[0], ids[len(ids)-1])
			}
			st := c.status().Services[0]
			if len(st.Leases) != 1 || st.Leases[0].MachineID != held.MachineID || st.Mode != "regular" {
				t.Errorf("the lease was %+v, and the status is %+v", held, st)
			}
			if !strings.Contains(d.log.String(), "lease adopted") {
				t.Error("the log does not say that a lease was adopted")
			}
			d.kill()

			fresh := newSite(t)
			fresh.start(args...)
			other := fresh.dial()
			if id := other.id(); !isFallback(uint64(id)) || other.status().Mode != "fallback_random" {
				t.Errorf("without a state to adopt from it made %d", id)
			}
		})
	}
}
