package daemon

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/record/quota"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/wire"
)

// otherUser is nobody's.
const otherUser = 54321

// dialAs connects as another user: a thread that becomes that user, and ends.
func (r *rig) dialAs(uid uint32) *peer {
	r.t.Helper()
	if os.Geteuid() != 0 {
		r.t.Skip("only root can connect as another user")
	}
	type result struct {
		p   *peer
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and no unlock: the thread ends with the goroutine
		const setSecureBits, keepCapabilities = 28, 4
		unchanged := ^uintptr(0)
		_, _, failed := syscall.RawSyscall(syscall.SYS_PRCTL, setSecureBits, keepCapabilities, 0)
		if failed == 0 {
			_, _, failed = syscall.RawSyscall(syscall.SYS_SETRESUID, unchanged, uintptr(uid), unchanged)
		}
		if failed != 0 {
			done <- result{nil, failed}
			return
		}
		p, err := dial(r.t, r.path)
		done <- result{p, err}
	}()
	got := <-done
	if got.err != nil {
		r.t.Fatal(got.err)
	}
	r.t.Cleanup(func() { _ = got.p.Close() })
	return got.p
}

// One user fills keys until it is refused. What it has can be renewed, released and asked
// for, and another user's new keys are made.
func TestQuotaOfKeys(t *testing.T) {
	store := quota.New(memory.New(nil), quota.Limits{Keys: 20}, clock.NewBelieved(clock.System{}, clock.Config{}).Elapsed)
	locks := lock.OnRecords(store)
	host := lock.NewHost(locks, clock.NewBelieved(clock.System{}, clock.Config{}), hang)
	r := newRig(t, func(s *setup) {
		s.Locks = &Locks{Host: host, Store: locks, Owner: "alpha", Timeout: hang}
		s.Sequences = &Sequences{Store: sequence.OnRecords(store), Options: func(string) sequence.Options { return sequence.DefaultOptions() }, Timeout: hang}
	})
	t.Cleanup(func() {
		if err := host.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r.start()
	a, b := r.dial(), r.dialAs(otherUser)
	for i := range 10 {
		a.table("Lock.Acquire", fmt.Sprint("k", i), options{"ttl_ms": 24 * time.Hour.Milliseconds()})
		a.result("Sequence.Next", fmt.Sprint("k", i))
	}
	refused := func(method string, params ...any) {
		t.Helper()
		want := fmt.Sprintf("user %d has no room for a new key: the limit quota_keys is 20", os.Getuid())
		if e := a.fails(wire.CodeOverloaded, method, params...); !strings.Contains(e.Error(), want) {
			t.Errorf("%s: %v", method, e)
		}
	}
	refused("Lock.Acquire", "more")
	refused("Lock.Acquire", "more", options{"wait_ms": 10_000})
	refused("Lock.Acquire", "more", options{"hold": "connection"})
	refused("Sequence.Next", "more")
	refused("Sequence.NextBatch", "more", 5)
	a.table("Lock.Renew", "k0")
	a.table("Lock.Get", "k0")
	a.result("Sequence.Next", "k0")
	b.table("Lock.Acquire", "more")
	b.result("Sequence.Next", "more")
	b.table("Lock.Acquire", "held", options{"hold": "connection"})
	a.table("Lock.Release", "k0")
	a.table("Lock.Acquire", "k0")
}

// The user that asks for an activation pays for its record and its lock, and the user whose
// process leaves a snapshot pays for that. A snapshot that there is no room for is lost, and
// the activation ends all the same.
func TestQuotaOfPlacement(t *testing.T) {
	const room = 64 << 10
	store := quota.New(memory.New(nil), quota.Limits{Keys: 6, Bytes: room}, clock.NewBelieved(clock.System{}, clock.Config{}).Elapsed)
	s := &site{t, lock.OnRecords(store), storage.OnRecords(store)}
	r := s.start("a:1").sees(1)
	worker := r.dialAs(otherUser)
	worker.table("Placement.Register", []string{"room"})
	for i := range 3 {
		r.activate(worker, fmt.Sprint(i))
	}
	p := r.dial()
	e := p.fails(wire.CodeOverloaded, "Placement.Resolve", "room", "3")
	if want := fmt.Sprintf("user %d has no room for a new key: the limit quota_keys is 6", os.Getuid()); !strings.Contains(e.Error(), want) {
		t.Errorf("%v", e)
	}
	other := r.dialAs(otherUser + 1)
	other.ask("Placement.Resolve", "room", "3")
	worker.answer(worker.want("Activate", "3"), nil, map[string]any{"pid": "p"})
	if got := other.receive(); got.err != nil {
		t.Fatal(got.err)
	}
	worker.ask("Placement.Unregister")
	kept := map[string]bool{}
	for range 4 {
		worker.answer(worker.next(), nil, map[string]any{"snapshot": make([]byte, 60<<10/4*3)}) // base64 in the record
	}
	if got := worker.receive(); got.err != nil {
		t.Fatal(got.err)
	}
	worker = r.worker()
	for i := range 3 {
		a := r.activate(worker, fmt.Sprint(i))
		kept[fmt.Sprint(len(a.params.Snapshot))] = true
	}
	p.ask("Placement.Resolve", "room", "3")
	a := worker.want("Activate", "3")
	worker.answer(a, nil, map[string]any{"pid": "p"})
	if got := p.receive(); got.err != nil {
		t.Error(got.err)
	}
	kept[fmt.Sprint(len(a.params.Snapshot))] = true
	if !kept["0"] || !kept[fmt.Sprint(60<<10/4*3)] {
		t.Errorf("snapshots of the lengths %v", kept)
	}
}
