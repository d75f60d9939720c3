package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// An operator says how a sequence goes on, beside a running daemon.
func TestSeqDeclare(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.kazahanad("seq", "orders", "--declare", "41", "--config", "none", "--state-dir", s.state).fails(t, exitFailure, "store.db", "start the daemon first")
	s.start()
	s.kazahanad("seq", "orders", "-n", "3").ok(t)
	declare := func(args ...string) outcome {
		return s.kazahanad(append([]string{"seq", "--config", "none", "--state-dir", s.state}, args...)...)
	}
	got := declare("orders", "--declare", "41").ok(t)
	if !strings.HasPrefix(got, `sequence "orders" on sqlite:`+filepath.Join(s.state, "store.db")+" goes on after 41, with step=1 ") || strings.Count(got, "\n") != 1 {
		t.Errorf("%q", got)
	}
	if got := s.kazahanad("seq", "orders", "-n", "2").ok(t); got != "42\n43\n" {
		t.Errorf("it goes on with %q", got)
	}
	if got := s.kazahanad("seq", "others").ok(t); got != "1\n" {
		t.Errorf("another begins with %q", got)
	}
	declare("orders", "--declare", "0").ok(t)
	if got := s.kazahanad("seq", "orders").ok(t); got != "1\n" {
		t.Errorf("begun anew, it is %q", got)
	}
	// How it counts is the configuration's matter, here as for the daemon.
	if got := declare("day/1", "--declare", "30", "--sequences", "{day/: {step: 10, max_value: 50, on_max: error}}").ok(t); !strings.Contains(got, "step=10 start=10 max_value=50 on_max=error") {
		t.Errorf("%q", got)
	}
	declare("day/1", "--declare", "60", "--sequences", "{day/: {step: 10, max_value: 50}}").fails(t, exitUsage, "--declare", "60 is not 0 to 50")
	declare("orders", "--declare=-1").fails(t, exitUsage, "--declare", "-1 is not 0 to")
	declare("orders", "--declare", "many").fails(t, exitUsage, "--declare")
	declare("orders", "--declare", "1", "--tenant", "no/such").fails(t, exitUsage, "tenant")
	declare("orders", "--declare", "1", "--store", "none").fails(t, exitUsage, "--store")
	declare("orders", "--declare", "1", "--store", "http://127.0.0.1:1").fails(t, exitFailure, "refused")
	declare("orders", "--declare", "1", "--store", "redis://:hunter2@127.0.0.1:1/0").fails(t, exitFailure, "refused")
}

// A declaration ends the fence of its key, and of no other.
func TestSeqDeclareEndsFence(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	redis := s.startRedis()
	s.start("--provider", "static:7", "--store", redis.url())
	s.kazahanad("seq", "orders").fails(t, exitFailure, "SEQUENCE_FENCED", "docs/sequences.md")
	s.kazahanad("seq", "orders", "--declare", "1000", "--config", "none", "--state-dir", s.state, "--store", redis.url()).ok(t)
	if got := s.kazahanad("seq", "orders").ok(t); got != "1001\n" {
		t.Errorf("after the fence comes %q", got)
	}
	s.kazahanad("seq", "others").fails(t, exitFailure, "SEQUENCE_FENCED")
}

// Where a lease server is the store, it is told.
func TestSeqDeclareToLeaseServer(t *testing.T) {
	t.Parallel()
	far, s := newSite(t), newSite(t)
	server := far.startLeaseServer("127.0.0.1:0", "--provider", "sqlite:"+far.leases())
	s.start("--provider", "static:7", "--store", server.url())
	s.kazahanad("seq", "orders").ok(t)
	s.kazahanad("seq", "orders", "--declare", "41", "--config", "none", "--state-dir", s.state, "--store", server.url()).ok(t)
	if got := s.kazahanad("seq", "orders").ok(t); got != "42\n" {
		t.Errorf("it goes on with %q", got)
	}
	if !logsOf(t, server.log)[event{"info", "sequences", "sequence reset"}] {
		t.Errorf("the server's log does not tell of it:\n%s", server.log)
	}
}
