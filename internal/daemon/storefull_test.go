package daemon

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement/storage"
	recordbounds "github.com/kazahana/kazahana/internal/record/bounds"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/wire"
)

// full expects that the store has no room, for a reason with these words.
func (p *peer) full(words string, method string, params ...any) {
	p.t.Helper()
	if got := p.fails(wire.CodeStoreFull, method, params...); !strings.Contains(got.Message, words) {
		p.t.Errorf("%s: %v, without %q", method, got, words)
	}
}

// One user fills keys until it is refused. Its own keys can be renewed, released and asked for,
// and another user's new keys are made.
func TestFullForAUser(t *testing.T) {
	store := recordbounds.New(memory.New(nil), recordbounds.Limits{Keys: 26}, clock.NewBelieved(clock.System{}, clock.Config{}).Elapsed)
	r := newRig(t, func(s *setup) { s.keep(t, lock.OnRecords(store), sequence.OnRecords(store)) }).start()
	a, b := r.dialAs(1000), r.dialAs(1001)
	for i := range 10 {
		a.table("Lock.Acquire", fmt.Sprint("k", i), options{"ttl_ms": 24 * time.Hour.Milliseconds()})
		a.result("Sequence.Next", fmt.Sprint("k", i))
	}
	words := "max_keys: UID 1000 may have 20 keys"
	a.full(words, "Lock.Acquire", "more")
	a.full(words, "Lock.Acquire", "more", options{"wait_ms": 10_000})
	a.full(words, "Lock.Acquire", "more", options{"hold": "connection"})
	a.full(words, "Sequence.Next", "more")
	a.full(words, "Sequence.NextBatch", "more", 5)
	a.table("Lock.Renew", "k0")
	a.table("Lock.Get", "k0")
	a.result("Sequence.Next", "k0")
	b.table("Lock.Acquire", "more")
	b.result("Sequence.Next", "more")
	b.table("Lock.Acquire", "held", options{"hold": "connection"})
	a.table("Lock.Release", "k0")
	a.table("Lock.Acquire", "k0")
}

// The user that asks for an activation pays for its record and its lock, and the user of a
// process that leaves a snapshot pays for that. A snapshot that there is no room for is
// lost, and the activation ends all the same.
func TestFullForPlacement(t *testing.T) {
	const room = 64 << 10 / 3 * 4 // of which one user has 64 KiB
	store := recordbounds.New(memory.New(nil), recordbounds.Limits{Keys: 16, Bytes: room}, clock.NewBelieved(clock.System{}, clock.Config{}).Elapsed)
	s := &site{t, lock.OnRecords(store), storage.OnRecords(store)}
	r := s.start("a:1").sees(1)
	worker := r.dialAs(1001)
	worker.table("Placement.Register", []string{"room"})
	for i := range 6 {
		r.activate(worker, fmt.Sprint(i))
	}
	p := r.dial()
	p.full(fmt.Sprintf("max_keys: UID %d may have 12 keys", os.Getuid()), "Placement.Resolve", "room", "6")
	other := r.dialAs(1002)
	other.ask("Placement.Resolve", "room", "6")
	worker.answer(worker.want("Activate", "6"), nil, map[string]any{"pid": "p"})
	other.succeeds()
	worker.ask("Placement.Unregister")
	kept := map[string]bool{}
	for range 7 {
		worker.answer(worker.next(), nil, map[string]any{"snapshot": make([]byte, 60<<10/4*3)}) // base64 in the record
	}
	worker.succeeds()
	r.upToDate()
	worker = r.worker()
	for i := range 6 {
		a := r.activate(worker, fmt.Sprint(i))
		kept[fmt.Sprint(len(a.params.Snapshot))] = true
	}
	p.ask("Placement.Resolve", "room", "6")
	a := worker.want("Activate", "6")
	worker.answer(a, nil, map[string]any{"pid": "p"})
	p.succeeds()
	kept[fmt.Sprint(len(a.params.Snapshot))] = true
	if !kept["0"] || !kept[fmt.Sprint(60<<10/4*3)] {
		t.Errorf("snapshots of the lengths %v", kept)
	}
}
