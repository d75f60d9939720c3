package main

import (
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// These tests rest on the provider being opened when it is first needed, and
// again after a failure: the socket answers as soon as the process is up.

// obstacles are what can be at the provider's path when the daemon starts.
var obstacles = map[string]func(t *testing.T, path string){
	"garbage":   func(t *testing.T, path string) { testkit.WriteFile(t, path, strings.Repeat("garbage ", 1000)) },
	"empty":     func(t *testing.T, path string) { testkit.WriteFile(t, path, "") },
	"directory": func(t *testing.T, path string) { testkit.Mkdir(t, path) },
}

// The daemon comes up without its provider, says so, and goes on by itself
// once the provider is there.
func TestProviderUnusableAtStart(t *testing.T) {
	for name, put := range obstacles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			put(t, s.Leases())
			s.Start(s.Brief()...)
			c := s.Dial()
			st := c.AwaitMode("fallback_random")
			if svc := st.Services[0]; !strings.Contains(svc.Cause, s.Leases()) || svc.Failures == 0 {
				t.Errorf("the status is %+v, want a cause that names the file", svc)
			}
			if st.Scope != "host" || !strings.Contains(st.Provider, s.Leases()) {
				t.Errorf("the status has scope %q and provider %q", st.Scope, st.Provider)
			}
			last := c.ID()
			if in := s.Inspected(last); in.Kind != snowflake.KindFallback {
				t.Errorf("inspect says %+v", in)
			}
			if human := s.Kazahanad("status").OK(t); !strings.Contains(human, "fallback_random") || !strings.Contains(human, s.Leases()) {
				t.Errorf("status says %s", human)
			}
			s.Kazahanad("health").OK(t)
			testkit.Rename(t, s.Leases(), s.Path("obstacle"))
			c.AwaitMode("regular")
			if id := c.ID(); id <= last || testkit.IsFallback(uint64(id)) {
				t.Errorf("%d came after %d", id, last)
			}
		})
	}
}

// A file whose pool has another epoch will never do: that is a mistake in the
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
			said = d.FailsToStart(exitFailure)
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

// Likewise with fallback forbidden: no ID until the provider is there, but an
// answer.
func TestProviderUnusableAtStartWithoutFallback(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	obstacles["garbage"](t, s.Leases())
	s.Start(s.Brief("--fallback", "none")...)
	c := s.Dial()
	c.AwaitMode("unavailable")
	if cause, _ := c.Refused(wire.CodeLeaseAcquisition).Detail("cause"); !strings.Contains(cause, s.Leases()) {
		t.Errorf("the cause is %q", cause)
	}
	s.Kazahanad("health").Fails(t, exitFailure, s.Leases())
	testkit.Rename(t, s.Leases(), s.Path("obstacle"))
	c.AwaitMode("regular")
	if id := c.ID(); testkit.IsFallback(uint64(id)) {
		t.Errorf("%d is a fallback ID", id)
	}
}
