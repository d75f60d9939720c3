package main

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/wire"
)

// lockView is a lock as the socket shows it.
type lockView struct {
	LeaseID      string `json:"lease_id"`
	OwnerID      string `json:"owner_id"`
	FencingToken int64  `json:"fencing_token"`
	State        string `json:"state"`
}

// Locks outlive a killed daemon until their terms are over; tokens go on above
// what they were; and no value of a sequence comes twice.
func TestLocksAndSequencesOutliveAKill(t *testing.T) {
	s := newSite(t)
	d := s.start()
	c := s.dial()
	if features := c.status().Features; !slices.Contains(features, "locks") || !slices.Contains(features, "sequences") {
		t.Errorf("features: %v", features)
	}
	var first, now lockView
	var n, last int64
	c.must("Lock.Acquire", &first, "k", map[string]any{"ttl_ms": 2000, "hold": "connection"})
	c.must("Sequence.NextBatch", nil, "orders", 10)
	c.must("Sequence.Next", &last, "orders")
	d.kill()
	s.start()
	c = s.dial()
	var refused *wire.Error
	if err := c.try("Lock.Acquire", nil, "k"); !errors.As(err, &refused) || refused.Code != wire.CodeLockHeld {
		t.Errorf("the lock of a process that may be alive: %v", err)
	}
	if c.must("Sequence.Next", &n, "orders"); n != last+1 {
		t.Errorf("after %d came %d", last, n)
	}
	c.must("Lock.Acquire", &now, "k", map[string]any{"wait_ms": 60_000, "hold": "connection"})
	if now.FencingToken != first.FencingToken+1 || now.OwnerID != first.OwnerID {
		t.Errorf("after %+v came %+v", first, now)
	}
	_ = c.Close()
	c = s.dial()
	eventually(t, "the lock is free", func() bool {
		c.must("Lock.Get", &now, "k")
		return now.State == "RELEASED"
	})
}

func TestStoreSettings(t *testing.T) {
	s := newSite(t)
	for _, c := range []struct{ flag, want string }{
		{"--store=static:3", "store"},
		{"--store=sqlite:relative.db", "relative"},
		{"--sequences={a: {start: 10, max_value: 5}}", "sequences.a: max_value"},
	} {
		text := s.launch(c.flag).failsToStart(exitUsage)
		if !strings.Contains(text, c.want) {
			t.Errorf("%s: %s", c.flag, text)
		}
	}
	s.start("--store=none")
	if err := s.dial().try("Sequence.Next", nil, "k"); err == nil || !strings.Contains(err.Error(), "NO_STORE") {
		t.Errorf("without a store: %v", err)
	}
}
