package daemon

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// What clients do with locks and sequences is counted, by its result.
func TestKeepingMetricValues(t *testing.T) {
	r, store := withLocks(t)
	a, b := r.dial(), r.dial()
	count := func(want float64, name string, labels ...string) {
		t.Helper()
		if got := r.value(name, labels...); got != want {
			t.Errorf("%s%v is %v, want %v", name, labels, got, want)
		}
	}
	a.table("Lock.Acquire", "one", options{"hold": "connection"})
	a.table("Lock.Acquire", "two")
	count(1, "kazahana_locks_held")
	count(2, "kazahana_lock_wait_seconds")
	b.fails(wire.CodeLockHeld, "Lock.Acquire", "one")
	b.fails(wire.CodeInvalidParams, "Lock.Acquire", "one", options{"ttl_ms": 1})
	b.fails(wire.CodeLockNotOwned, "Lock.Renew", "one", options{"lease_id": "00000000000000000000000000000000"})
	b.fails(wire.CodeLockNotFound, "Lock.Get", "none")
	a.table("Lock.Renew", "two")
	a.table("Lock.Get", "two")
	a.table("Lock.List")
	a.table("Lock.Release", "two")
	for _, one := range []struct {
		op, result string
		n          float64
	}{
		{"acquire", "ok", 2},
		{"acquire", "held", 1},
		{"acquire", "refused", 1},
		{"renew", "ok", 1},
		{"renew", "not_owned", 1},
		{"get", "ok", 1},
		{"get", "refused", 1},
		{"list", "ok", 1},
		{"release", "ok", 1},
	} {
		count(one.n, "kazahana_lock_requests_total", one.op, one.result)
	}
	count(2, "kazahana_lock_wait_seconds")

	waits := r.dial()
	waits.ask("Lock.Acquire", "one", options{"wait_ms": hang.Milliseconds()})
	await.Eventually(t, "somebody waits", func() bool { return r.value("kazahana_lock_waiters") == 1 })
	_ = waits.Close()
	await.Eventually(t, "nobody waits any more", func() bool { return r.value("kazahana_lock_requests_total", "acquire", "canceled") == 1 })
	count(0, "kazahana_lock_waiters")

	store.fails.Store(true)
	b.fails(wire.CodeStoreUnavailable, "Lock.List")
	store.fails.Store(false)
	count(1, "kazahana_lock_requests_total", "list", "unavailable")

	b.result("Sequence.Next", "s")
	b.result("Sequence.NextBatch", "s", 5)
	limited := options{"max_value": 5, "on_max": "error"}
	b.result("Sequence.NextBatch", "full", 3, limited)
	b.fails(wire.CodeSequenceExhausted, "Sequence.NextBatch", "full", 3, limited)
	// Seed 003-7.2-11: values, batches, and what fails.
	count(3, "kazahana_sequence_requests_total", "ok")
	count(1, "kazahana_sequence_requests_total", "exhausted")
	count(9, "kazahana_sequence_values_total")

	_ = a.Close()
	await.Eventually(t, "the lock that a connection held is released", func() bool { return r.value("kazahana_locks_held") == 0 })
	count(0, "kazahana_locks_lost_total", "expired")
}

// Requests that are answered later are traced, with the code of their answer; those
// for IDs are not.
func TestSlowRequestsAreTraced(t *testing.T) {
	var mu sync.Mutex
	var ended []string
	r, store := withLocks(t, func(s *setup) {
		s.Trace = func(ctx context.Context, method string) (context.Context, func(string)) {
			return ctx, func(code string) {
				mu.Lock()
				defer mu.Unlock()
				ended = append(ended, fmt.Sprintf("%s %q", method, code))
			}
		}
	})
	p := r.dial()
	p.id()
	p.alive()
	p.table("Lock.Acquire", "k", options{"ttl_ms": 60_000})
	p.fails(wire.CodeLockHeld, "Lock.Acquire", "k")
	store.fails.Store(true)
	p.fails(wire.CodeStoreUnavailable, "Lock.List")
	store.fails.Store(false)
	gone := r.dial()
	gone.ask("Lock.Acquire", "k", options{"wait_ms": hang.Milliseconds()})
	await.Eventually(t, "it waits", func() bool { return r.value("kazahana_lock_waiters") == 1 })
	_ = gone.Close()
	want := []string{`Lock.Acquire "ok"`, `Lock.Acquire "LOCK_HELD"`, `Lock.List "STORE_UNAVAILABLE"`, `Lock.Acquire ""`}
	await.Eventually(t, "all have ended", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Equal(ended, want)
	})
}
