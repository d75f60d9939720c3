package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// Locks outlive a killed daemon until their terms are over; tokens go on above
// what they were; and no value of a sequence comes twice.
func TestLocksAndSequencesOutliveAKill(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.Start()
	c := s.Dial()
	if features := c.Status().Features; !slices.Contains(features, "locks") || !slices.Contains(features, "sequences") {
		t.Errorf("features: %v", features)
	}
	var first, now lock.Answer
	var n, last int64
	c.Must("Lock.Acquire", &first, "k", map[string]any{"ttl_ms": 30_000, "hold": "connection"})
	c.Must("Sequence.NextBatch", nil, "orders", 10)
	c.Must("Sequence.Next", &last, "orders")
	d.Kill()
	s.Start()
	c = s.Dial()
	var refused *wire.Error
	if err := c.Try("Lock.Acquire", nil, "k"); !errors.As(err, &refused) || refused.Code != wire.CodeLockHeld {
		t.Errorf("the lock of a process that may be alive: %v", err)
	}
	if c.Must("Sequence.Next", &n, "orders"); n != last+1 {
		t.Errorf("after %d came %d", last, n)
	}
	c.Must("Lock.Acquire", &now, "k", map[string]any{"wait_ms": 110_000, "hold": "connection"})
	if now.FencingToken != first.FencingToken+1 || now.OwnerID != first.OwnerID { // seed 002-4-1
		t.Errorf("after %+v came %+v", first, now)
	}
	_ = c.Close()
	c = s.Dial()
	await.Eventually(t, "the lock is free", func() bool {
		c.Must("Lock.Get", &now, "k")
		return now.State == lock.Released
	})
}

func TestStoreSettings(t *testing.T) {
	s := newSite(t)
	for _, c := range []struct{ flag, want string }{
		{"--store=static:3", "store"},
		{"--store=sqlite:relative.db", "relative"},
		{"--sequences={a: {start: 10, max_value: 5}}", "sequences.a: max_value"},
	} {
		text := s.Launch(c.flag).FailsToStart(exitUsage)
		if !strings.Contains(text, c.want) {
			t.Errorf("%s: %s", c.flag, text)
		}
	}
}

// All pages are listed, each lock once, as a table and as JSON.
func TestLocksLists(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start()
	if got := s.Kazahanad("locks").OK(t); got != "no lock is held\n" {
		t.Errorf("%q", got)
	}
	var none lockPage
	if text := s.Kazahanad("locks", "--json").OK(t); !strings.Contains(text, "[]") {
		t.Errorf("%s", text)
	} else if testkit.DecodeJSON(t, text, &none); len(none.Locks) != 0 {
		t.Errorf("%v", none)
	}
	const n = lock.MaxList + 1
	c := s.Dial()
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := worker; i < n; i += 8 {
				if err := c.Try("Lock.Acquire", nil, fmt.Sprintf("key\ue000%04d", i), map[string]any{"ttl_ms": 600_000}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	var report lockPage
	testkit.DecodeJSON(t, s.Kazahanad("locks", "--json").OK(t), &report)
	if len(report.Locks) != n {
		t.Fatalf("%d locks are listed, not %d", len(report.Locks), n)
	}
	for i, l := range report.Locks {
		if want := fmt.Sprintf("key\ue000%04d", i); l.LockKey != want || l.State != lock.Active || l.FencingToken != 1 || l.ExpiresInMS <= 0 {
			t.Fatalf("lock %d is %+v, not %q", i, l, want)
		}
	}
	lines := strings.Split(s.Kazahanad("locks").OK(t), "\n")
	last := strings.Fields(lines[n])
	if len(lines) != n+2 || !strings.HasPrefix(lines[0], "KEY ") || last[0] != "key?1000" || last[1] != report.Locks[n-1].OwnerID || last[2] != "1" {
		t.Errorf("%d lines, the first %q and the last %q", len(lines), lines[0], last)
	}
}
