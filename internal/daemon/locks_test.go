package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// frail is a lock store that can fail.
type frail struct {
	lock.Store
	fails atomic.Bool
}

var errAway = errors.New("the store is away")

func (f *frail) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if f.fails.Load() {
		return lock.Lease{}, errAway
	}
	return f.Store.Do(ctx, r)
}

func (f *frail) List(ctx context.Context, tenant, after string, limit int) ([]lock.Lease, error) {
	if f.fails.Load() {
		return nil, errAway
	}
	return f.Store.List(ctx, tenant, after, limit)
}

// keep gives the server locks and sequences in these stores, until the test ends.
func (s *setup) keep(t *testing.T, locks lock.Store, sequences sequence.Store) {
	host := lock.NewHost(locks, clock.NewBelieved(clock.System{}, clock.Config{}), hang)
	t.Cleanup(func() {
		if err := host.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	s.Locks = &Locks{Host: host, Store: locks, Owner: "alpha", Timeout: hang}
	s.Sequences = &Sequences{Store: sequences, Options: func(string) sequence.Options { return sequence.DefaultOptions() }, Timeout: hang}
}

// withLocks gives the server locks and sequences in memory.
func withLocks(t *testing.T, changes ...func(*setup)) (*rig, *frail) {
	t.Helper()
	store := &frail{Store: lock.OnRecords(memory.New(nil))}
	return newRig(t, append(changes, func(s *setup) { s.keep(t, store, sequence.OnRecords(memory.New(nil))) })...).start(), store
}

func (p *peer) token(method, key string, opts options) int64 {
	p.t.Helper()
	n, _ := asInt(p.table(method, key, opts)["fencing_token"])
	return int64(n)
}

func TestLockMethods(t *testing.T) {
	r, _ := withLocks(t)
	a, b := r.dial(), r.dial()
	got := a.table("Lock.Acquire", "orders", options{"ttl_ms": 60_000, "request_id": "r1"})
	want := map[string]any{
		"tenant_id": "default", "lock_key": "orders", "owner_id": fmt.Sprintf("alpha/%d", os.Getuid()),
		"state": "ACTIVE", "lease_id": got["lease_id"], "acquired_at": got["acquired_at"], "expires_at": got["expires_at"],
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s: %v, want %v", name, got[name], value)
		}
	}
	if n, _ := asInt(got["fencing_token"]); n != 1 {
		t.Errorf("the first token is %d", n)
	}
	if n, _ := asInt(got["expires_in_ms"]); n < 1 || n > 60_000 {
		t.Errorf("it expires in %d ms", n)
	}
	if again := a.table("Lock.Acquire", "orders", options{"ttl_ms": 60_000, "request_id": "r1"}); again["lease_id"] != got["lease_id"] {
		t.Error("the same request was granted another lease")
	}
	a.fails(wire.CodeRequestIDReused, "Lock.Acquire", "orders", options{"ttl_ms": 50_000, "request_id": "r1"})
	held := b.fails(wire.CodeLockHeld, "Lock.Acquire", "orders")
	if owner, _ := held.Detail("owner"); owner != want["owner_id"] {
		t.Errorf("it is held by %q", owner)
	}
	if at, _ := held.Detail("expires_at"); !strings.Contains(held.Message, "this user holds the lock already") || at != got["expires_at"] {
		t.Errorf("it is held: %v", held)
	}
	if other := r.dialAs(uint32(os.Getuid())+1).fails(wire.CodeLockHeld, "Lock.Acquire", "orders"); !strings.Contains(other.Message, "somebody else") {
		t.Errorf("to another user it is held: %v", other)
	}
	if ms, ok := held.Detail("retry_after_ms"); !ok || ms == "0" {
		t.Errorf("retry after %q", ms)
	}
	b.fails(wire.CodeLockNotOwned, "Lock.Renew", "orders", options{"lease_id": "00000000000000000000000000000000"})
	b.table("Lock.Renew", "orders", options{"ttl_ms": 90_000, "lease_id": got["lease_id"]})
	same := b.table("Lock.Renew", "orders")
	if n, _ := asInt(same["expires_in_ms"]); n <= 60_000 || n > 90_000 {
		t.Errorf("renewed without a term, it expires in %d ms", n)
	}
	b.fails(wire.CodeInvalidParams, "Lock.Renew", "orders", options{"ttl_ms": 0})
	a.table("Lock.Acquire", "held", options{"hold": "connection", "ttl_ms": 600_000})
	if n, _ := asInt(b.table("Lock.Renew", "held")["expires_in_ms"]); n <= 300_000 {
		t.Errorf("a held lock, renewed without a term, expires in %d ms", n)
	}
	if now := b.table("Lock.Get", "orders"); now["lease_id"] != got["lease_id"] || now["state"] != "ACTIVE" {
		t.Errorf("it is shown as %v", now)
	}
	if end := a.table("Lock.Release", "orders", options{"lease_id": got["lease_id"]}); end["state"] != "RELEASED" {
		t.Errorf("released: %v", end)
	}
	a.fails(wire.CodeLockNotOwned, "Lock.Release", "orders")
	a.fails(wire.CodeLockNotFound, "Lock.Get", "never")
	if n := b.token("Lock.Acquire", "orders", options{}); n != 2 {
		t.Errorf("the second token is %d", n)
	}
}

// Pages show live locks, in the order of the keys, each lock once.
func TestLockList(t *testing.T) {
	r, _ := withLocks(t)
	p := r.dial()
	if locks := p.table("Lock.List")["locks"].([]any); len(locks) != 0 {
		t.Errorf("before anybody asked for one: %v", locks)
	}
	for _, key := range []string{"c", "é", "a", "b", "over"} {
		p.table("Lock.Acquire", key, options{"ttl_ms": 60_000})
	}
	p.table("Lock.Release", "over")
	var keys []string
	for after := ""; ; {
		page := p.table("Lock.List", options{"after": after, "limit": 3})["locks"].([]any)
		for _, entry := range page {
			l := entry.(map[string]any)
			after = l["lock_key"].(string)
			keys = append(keys, after)
			if shown := p.table("Lock.Get", after); l["lease_id"] != shown["lease_id"] || l["owner_id"] != shown["owner_id"] || l["state"] != "ACTIVE" {
				t.Errorf("listed as %v, and shown as %v", l, shown)
			}
		}
		if len(page) < 3 {
			break
		}
	}
	if fmt.Sprint(keys) != "[a b c é]" {
		t.Errorf("the pages have the keys %q", keys)
	}
}

func TestLockMethodsRefuse(t *testing.T) {
	r, store := withLocks(t)
	p := r.dial()
	for _, c := range []struct {
		method string
		params []any
	}{
		{"Lock.Acquire", nil},
		{"Lock.Acquire", []any{""}},
		{"Lock.Acquire", []any{7}},
		{"Lock.Acquire", []any{"k", options{"ttl_ms": 1}}},
		{"Lock.Acquire", []any{"k", options{"ttl_ms": "long"}}},
		{"Lock.Acquire", []any{"k", options{"ttl_ms": 18_446_744_103_710}}}, // in nanoseconds 30 s, modulo 2^64
		{"Lock.Renew", []any{"k", options{"ttl_ms": -18_446_744_072_709}}},  // 1 s
		{"Lock.Acquire", []any{"k", options{"wait_ms": -1}}},
		{"Lock.Acquire", []any{"k", options{"hold": "for ever"}}},
		{"Lock.Acquire", []any{"k", options{"lease_id": "x"}}},
		{"Lock.Renew", []any{"k", options{"wait_ms": 1}}},
		{"Lock.Release", []any{"k", options{"ttl_ms": 1000}}},
		{"Lock.Get", []any{"k", options{"ttl_ms": 1000}}},
		{"Lock.List", []any{"k"}},
		{"Lock.List", []any{options{"limit": 0}}},
		{"Lock.List", []any{options{"limit": lock.MaxList + 1}}},
		{"Lock.List", []any{options{"after": "\x00"}}},
		{"Lock.List", []any{options{"before": "k"}}},
		{"Sequence.Next", nil},
		{"Sequence.Next", []any{"k", options{"colour": 1}}},
		{"Sequence.Next", []any{"k", options{"step": 0}}},
		{"Sequence.Next", []any{"k", options{"on_max": "explode"}}},
		{"Sequence.NextBatch", []any{"k"}},
		{"Sequence.NextBatch", []any{"k", 0}},
		{"Sequence.NextBatch", []any{"k", 65_537}},
	} {
		p.fails(wire.CodeInvalidParams, c.method, c.params...)
	}
	store.fails.Store(true)
	p.fails(wire.CodeStoreUnavailable, "Lock.Release", "k")
	p.fails(wire.CodeStoreUnavailable, "Lock.List")
	p.alive()
}

func TestLocksWithoutAStore(t *testing.T) {
	p := newRig(t).start().dial()
	for _, method := range []string{"Lock.Acquire", "Lock.Renew", "Lock.Release", "Lock.Get", "Lock.Watch", "Sequence.Next"} {
		p.fails(CodeNoStore, method, "k")
	}
	p.fails(CodeNoStore, "Sequence.NextBatch", "k", 3)
	p.fails(CodeNoStore, "Lock.List")
}

// Who waits for a lock gets it as soon as the holder's connection ends.
func TestLockHeldByAConnection(t *testing.T) {
	r, _ := withLocks(t)
	holder, next := r.dial(), r.dial()
	first := holder.token("Lock.Acquire", "k", options{"hold": "connection"})
	next.ask("Lock.Acquire", "k", options{"hold": "connection", "wait_ms": 60_000})
	next.id() // which is not kept waiting
	r.waiters(1)
	_ = holder.Close()
	got := map[string]any{}
	next.decode(next.receive().result, &got)
	if n, _ := asInt(got["fencing_token"]); int64(n) != first+1 || got["state"] != "ACTIVE" {
		t.Errorf("after token %d: %v", first, got)
	}
	// A lock released by name is not released again with the connection.
	next.table("Lock.Release", "k")
	last := r.dial()
	last.table("Lock.Acquire", "k", options{"ttl_ms": 3_600_000})
	_ = next.Close()
	await.Eventually(t, "the connection is gone", func() bool { return r.server.connections() == 1 })
	if now := last.table("Lock.Get", "k"); now["state"] != "ACTIVE" {
		t.Errorf("it is shown as %v", now)
	}
}

// toldOfLoss reads the notice that the lock "k" is lost.
func (p *peer) toldOfLoss(lease any, reason string) {
	p.t.Helper()
	var notice []any
	if err := p.dec.Decode(&notice); err != nil || len(notice) != 3 || notice[1] != "Lock.Lost" {
		p.t.Fatalf("the notice: %v, %v", notice, err)
	}
	told := notice[2].([]any)[0].(map[string]any)
	if told["lock_key"] != "k" || told["lease_id"] != lease || told["reason"] != reason {
		p.t.Errorf("the notice: %v, want the reason %s", told, reason)
	}
}

// A loss is told to the connection that held the lock and asked to be told, and to no other.
func TestLockWatch(t *testing.T) {
	r, store := withLocks(t)
	holder, other := r.dial(), r.dial()
	lease := holder.table("Lock.Acquire", "k", options{"hold": "connection", "ttl_ms": 1500})["lease_id"]
	other.table("Lock.Acquire", "mine", options{"hold": "connection"})
	other.fails(wire.CodeLockNotOwned, "Lock.Watch", "k", options{"lease_id": lease})
	holder.fails(wire.CodeLockNotOwned, "Lock.Watch", "mine")
	holder.fails(wire.CodeLockNotOwned, "Lock.Watch", "k", options{"lease_id": "00000000000000000000000000000000"})
	for _, opts := range []options{{}, {"lease_id": lease}} { // twice is once
		holder.table("Lock.Watch", "k", opts)
	}
	store.fails.Store(true) // until the term is over
	holder.toldOfLoss(lease, "expired")
	store.fails.Store(false)
	for _, p := range []*peer{holder, other} {
		p.alive() // with no notice before the answer
	}
	holder.fails(wire.CodeLockNotOwned, "Lock.Watch", "k")
	await.Eventually(t, "the loss is counted", func() bool { return r.value("kazahana_locks_lost_total", "expired") == 1 })
	await.Eventually(t, "the loss is logged", func() bool { return r.logs.FilterMessage("lock lost").Len() == 1 })
	if n := r.value("kazahana_locks_held"); n != 1 {
		t.Errorf("%v locks are held", n)
	}
}

// Any connection of the user may release the lock by name. To the holder that is a
// loss, which it hears of as of any other.
func TestHeldLockReleasedByAnotherConnection(t *testing.T) {
	r, _ := withLocks(t)
	holder, other := r.dial(), r.dial()
	lease := holder.table("Lock.Acquire", "k", options{"hold": "connection"})["lease_id"]
	holder.table("Lock.Watch", "k", options{"lease_id": lease})
	if released := other.table("Lock.Release", "k"); released["lease_id"] != lease {
		t.Fatalf("released: %v", released)
	}
	holder.toldOfLoss(lease, "released")
	holder.alive()
	await.Eventually(t, "the loss is counted", func() bool { return r.value("kazahana_locks_lost_total", "released") == 1 })
	await.Eventually(t, "the loss is logged", func() bool { return r.logs.FilterMessage("lock lost").Len() == 1 })
	if fields := r.logs.FilterMessage("lock lost").All()[0].ContextMap(); fields["key"] != "k" || fields["reason"] != "released" {
		t.Errorf("the log has %v", fields)
	}
	// The holder's own release is none.
	lease = holder.table("Lock.Acquire", "k", options{"hold": "connection"})["lease_id"]
	holder.table("Lock.Watch", "k", options{"lease_id": lease})
	holder.table("Lock.Release", "k")
	holder.alive() // with no notice before the answer
	if n := r.value("kazahana_locks_lost_total", "released"); n != 1 {
		t.Errorf("%v locks are counted as lost", n)
	}
}

// A holder hears of one loss once, and of none when it has let go.
func TestLossIsToldOnce(t *testing.T) {
	r, _ := withLocks(t)
	holder := r.dial()
	lost := func(end func()) {
		lease, _ := holder.table("Lock.Acquire", "k", options{"hold": "connection"})["lease_id"].(string)
		holder.table("Lock.Watch", "k")
		r.server.holds.mu.Lock()
		h := r.server.holds.byLease[lease]
		r.server.holds.mu.Unlock()
		end()
		r.server.lost(h, h.lease, lock.ErrExpired) // as by a renewal that was under way
		r.server.holds.notices.Wait()
		holder.alive() // with no notice before the answer
	}
	lost(func() { holder.table("Lock.Release", "k") })
	lost(func() {
		lease := holder.table("Lock.Get", "k")["lease_id"]
		r.dial().table("Lock.Release", "k")
		holder.toldOfLoss(lease, "released")
	})
}

// The time that is left goes on between renewals.
func TestLockWatchTellsWhatIsLeft(t *testing.T) {
	r, _ := withLocks(t)
	p := r.dial()
	granted, _ := asInt(p.table("Lock.Acquire", "k", options{"hold": "connection", "ttl_ms": 3_600_000})["expires_in_ms"])
	await.Eventually(t, "less is left", func() bool {
		left, _ := asInt(p.table("Lock.Watch", "k")["expires_in_ms"])
		return left < granted
	})
}

// Asked again from another connection under the same request ID, that one is
// the holder from then on.
func TestLockHeldAgainElsewhere(t *testing.T) {
	r, _ := withLocks(t)
	opts := options{"hold": "connection", "request_id": "one"}
	a, b, other := r.dial(), r.dial(), r.dial()
	lease := a.table("Lock.Acquire", "k", opts)["lease_id"]
	if again := b.table("Lock.Acquire", "k", opts)["lease_id"]; again != lease {
		t.Fatalf("lease %v, then %v", lease, again)
	}
	_ = a.Close()
	await.Eventually(t, "the first connection is gone", func() bool { return r.server.connections() == 2 })
	if now := b.table("Lock.Get", "k"); now["state"] != "ACTIVE" || now["lease_id"] != lease {
		t.Errorf("it is shown as %v", now)
	}
	_ = b.Close()
	await.Eventually(t, "the lock is free", func() bool { return other.table("Lock.Get", "k")["state"] == "RELEASED" })
}

// A caller that waits for a lock hears at once that the daemon stops, and the locks of
// connections are released by then.
func TestLocksWhenTheDaemonStops(t *testing.T) {
	r, store := withLocks(t)
	holder, waiting := r.dial(), r.dial()
	holder.table("Lock.Acquire", "k", options{"hold": "connection"})
	waiting.ask("Lock.Acquire", "k", options{"wait_ms": 3_600_000})
	r.waiters(1)
	r.drains()
	waiting.wantError(waiting.receive(), wire.CodeShuttingDown)
	_ = holder.Close()
	_ = waiting.Close()
	r.stop()
	if l, err := store.Get(t.Context(), "default", "k"); err != nil || l.State != lock.Released {
		t.Errorf("after the stop: %+v, %v", l, err)
	}
}

func TestSequenceMethods(t *testing.T) {
	r, _ := withLocks(t)
	p := r.dial()
	var n int64
	for want := int64(1); want <= 3; want++ {
		if p.decode(p.result("Sequence.Next", "alice"), &n); n != want { // seed 003-2-1
			t.Errorf("%d, want %d", n, want)
		}
	}
	var batch []int64
	for range 2 { // the second request repeats the first one
		p.decode(p.result("Sequence.NextBatch", "alice", 4, options{"request_id": "b"}), &batch)
		if fmt.Sprint(batch) != "[4 5 6 7]" {
			t.Errorf("the batch: %v", batch)
		}
	}
	limited := options{"step": 10, "start": 5, "max_value": 30, "on_max": "error", "ttl_ms": 60_000}
	p.decode(p.result("Sequence.NextBatch", "bob", 3, limited), &batch)
	if fmt.Sprint(batch) != "[5 15 25]" { // seed 003-8.1-2
		t.Errorf("steps: %v", batch)
	}
	exhausted := p.fails(wire.CodeSequenceExhausted, "Sequence.Next", "bob", limited)
	if most, _ := exhausted.Detail("max_value"); most != "30" {
		t.Errorf("%v", exhausted)
	}
	p.fails(wire.CodeInvalidParams, "Sequence.Next", "bob") // it counts otherwise
	// Seed 003-8.2-1: each key begins by itself.
	if p.decode(p.result("Sequence.Next", "carol"), &n); n != 1 {
		t.Errorf("%d, want 1", n)
	}
	// Seed 003-5-1: the same daemon makes IDs and UUIDs.
	if id, text := p.id(), p.text("UUID"); id == 0 || len(text) != 36 {
		t.Errorf("%d and %q", id, text)
	}
}
