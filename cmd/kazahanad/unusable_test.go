package main

import (
	"os"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/wire"
)

// These tests rest on the provider being opened when it is first needed, and
// again after a failure: the socket answers as soon as the process is up.

// obstacles are what can be at the provider's path when the daemon starts.
var obstacles = map[string]func(t *testing.T, path string){
	"garbage":   func(t *testing.T, path string) { writeFile(t, path, strings.Repeat("garbage ", 1000)) },
	"empty":     func(t *testing.T, path string) { writeFile(t, path, "") },
	"directory": func(t *testing.T, path string) { mkdir(t, path) },
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

// The daemon comes up without its provider, says so, and goes on by itself
// once the provider is there.
func TestProviderUnusableAtStart(t *testing.T) {
	for name, put := range obstacles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			put(t, s.leases())
			s.start(s.brief()...)
			c := s.dial()
			st := c.awaitMode("fallback_random")
			if svc := st.Services[0]; !strings.Contains(svc.Cause, s.leases()) || svc.Failures == 0 {
				t.Errorf("the status is %+v, want a cause that names the file", svc)
			}
			if st.Scope != "host" || !strings.Contains(st.Provider, s.leases()) {
				t.Errorf("the status has scope %q and provider %q", st.Scope, st.Provider)
			}
			last := c.id()
			if in := s.inspected(last); in.Kind != snowflake.KindFallback {
				t.Errorf("inspect says %+v", in)
			}
			if human := s.kazahanad("status").ok(t); !strings.Contains(human, "fallback_random") || !strings.Contains(human, s.leases()) {
				t.Errorf("status says %s", human)
			}
			s.kazahanad("health").ok(t)
			rename(t, s.leases(), s.path("obstacle"))
			c.awaitMode("regular")
			if id := c.id(); id <= last || isFallback(uint64(id)) {
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
	d := s.start("--provider", "sqlite:"+s.leases())
	s.dial().id()
	d.terminate()
	fresh := newSite(t)
	d = fresh.launch("--provider", "sqlite:"+s.leases()+"?epoch=2025-06-01T00:00:00Z")
	var said string
	eventually(t, "the daemon says what is wrong", func() bool {
		select {
		case <-d.ended:
			said = d.failsToStart(exitFailure)
			return true
		default:
		}
		got := fresh.kazahanad("status", "--json")
		said = got.stdout
		return strings.Contains(said, "fallback_random") && strings.Contains(said, "epoch 20")
	})
	for _, want := range []string{s.leases(), "epoch", "2025-06-01", "2026-01-01"} {
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
	obstacles["garbage"](t, s.leases())
	s.start(s.brief("--fallback", "none")...)
	c := s.dial()
	c.awaitMode("unavailable")
	if cause, _ := c.refused(wire.CodeLeaseAcquisition).Detail("cause"); !strings.Contains(cause, s.leases()) {
		t.Errorf("the cause is %q", cause)
	}
	s.kazahanad("health").fails(t, exitFailure, s.leases())
	rename(t, s.leases(), s.path("obstacle"))
	c.awaitMode("regular")
	if id := c.id(); isFallback(uint64(id)) {
		t.Errorf("%d is a fallback ID", id)
	}
}
