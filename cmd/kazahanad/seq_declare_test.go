package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
)

// An operator says how a sequence goes on, beside a running daemon.
func TestSeqDeclare(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Kazahanad("seq", "orders", "--declare", "41", "--config", "none", "--state-dir", s.State).Fails(t, exitFailure, "store.db", "start the daemon first")
	s.Start()
	s.Kazahanad("seq", "orders", "-n", "3").OK(t)
	declare := func(args ...string) testkit.Outcome {
		return s.Kazahanad(append([]string{"seq", "--config", "none", "--state-dir", s.State}, args...)...)
	}
	got := declare("orders", "--declare", "41").OK(t)
	if !strings.HasPrefix(got, `sequence "orders" on sqlite:`+filepath.Join(s.State, "store.db")+" goes on after 41, with step=1 ") || strings.Count(got, "\n") != 1 {
		t.Errorf("%q", got)
	}
	if got := s.Kazahanad("seq", "orders", "-n", "2").OK(t); got != "42\n43\n" {
		t.Errorf("it goes on with %q", got)
	}
	if got := s.Kazahanad("seq", "others").OK(t); got != "1\n" {
		t.Errorf("another begins with %q", got)
	}
	declare("orders", "--declare", "0").OK(t)
	if got := s.Kazahanad("seq", "orders").OK(t); got != "1\n" {
		t.Errorf("begun anew, it is %q", got)
	}
	// How it counts is the configuration's matter, here as for the daemon.
	if got := declare("day/1", "--declare", "30", "--sequences", "{day/: {step: 10, max_value: 50, on_max: error}}").OK(t); !strings.Contains(got, "step=10 start=10 max_value=50 on_max=error") {
		t.Errorf("%q", got)
	}
	declare("day/1", "--declare", "60", "--sequences", "{day/: {step: 10, max_value: 50}}").Fails(t, exitUsage, "--declare", "60 is not 0 to 50")
	declare("orders", "--declare=-1").Fails(t, exitUsage, "--declare", `"-1" is out of range`)
	declare("orders", "--declare", "many").Fails(t, exitUsage, "--declare")
	declare("orders", "--declare", "1", "--tenant", "no/such").Fails(t, exitUsage, "tenant")
	declare("orders", "--declare", "1", "--store", "none").Fails(t, exitUsage, "--store")
	declare("orders", "--declare", "1", "--store", "http://127.0.0.1:1").Fails(t, exitFailure, "refused")
	declare("orders", "--declare", "1", "--store", "redis://:hunter2@127.0.0.1:1/0").Fails(t, exitFailure, "refused")
}

// A declaration ends the fence of its key, and of no other.
func TestSeqDeclareEndsFence(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	redis := s.StartRedis()
	s.Start("--provider", "static:7", "--store", redis.URL())
	s.Kazahanad("seq", "orders").Fails(t, exitFailure, "SEQUENCE_FENCED", "docs/sequences.md")
	s.Kazahanad("seq", "orders", "--declare", "1000", "--config", "none", "--state-dir", s.State, "--store", redis.URL()).OK(t)
	if got := s.Kazahanad("seq", "orders").OK(t); got != "1001\n" {
		t.Errorf("after the fence comes %q", got)
	}
	s.Kazahanad("seq", "others").Fails(t, exitFailure, "SEQUENCE_FENCED")
}

// Where a lease server is the store, it is told.
func TestSeqDeclareToLeaseServer(t *testing.T) {
	t.Parallel()
	far, s := newSite(t), newSite(t)
	server := far.StartLeaseServer("127.0.0.1:0", "--provider", "sqlite:"+far.Leases())
	s.Start("--provider", "static:7", "--store", server.URL())
	s.Kazahanad("seq", "orders").OK(t)
	s.Kazahanad("seq", "orders", "--declare", "41", "--config", "none", "--state-dir", s.State, "--store", server.URL()).OK(t)
	if got := s.Kazahanad("seq", "orders").OK(t); got != "42\n" {
		t.Errorf("it goes on with %q", got)
	}
	if !logsOf(t, server.Log)[event{"info", "sequences", "sequence reset"}] {
		t.Errorf("the server's log does not tell of it:\n%s", server.Log)
	}
}
