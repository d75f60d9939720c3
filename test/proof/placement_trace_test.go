package proof

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/storage"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/test/trace"
)

// patienceOfHosts is how long the driver waits for a process: its time for a command.
const patienceOfHosts = 5 * time.Second

// placeTrail is what a world knows of its actors: at the end test/trace holds it against
// docs/model/Placement.tla. It ends where the store falls back: a store that forgets an
// activation and keeps a membership may have two activated, as docs/placement.md says.
type placeTrail struct {
	w *world

	mu    sync.Mutex // drivers note from goroutines
	steps map[placement.Key][]trace.PlaceStep
	lives map[*message]membershipOf
}

// membershipOf is a membership that a message has granted or renewed, and from when its host may
// count the term.
type membershipOf struct {
	life   int64
	termMS int64
	sent   time.Duration
}

const membersPrefix = "members/"

// placed is what a driver asks for about the record of an activation.
type placed struct {
	key    placement.Key
	record placement.Record
	remove bool
}

type placedKey struct{}

// placedRecords notes what a driver writes.
type placedRecords struct {
	storage.Storage
	by *host
}

// Store implements storage.Storage.
func (s placedRecords) Store(ctx context.Context, tenant string, key placement.Key, r placement.Record) error {
	if r.PID == "" { // with it, the record is written again
		s.by.d.w.placeTrail.notes(s.by, key, trace.PlaceStep{Do: "Write", Life: r.Owner.Token, Version: r.Version, Token: r.Token})
	}
	return s.Storage.Store(context.WithValue(ctx, placedKey{}, &placed{key, r, false}), tenant, key, r)
}

// Remove implements storage.Storage.
func (s placedRecords) Remove(ctx context.Context, tenant string, key placement.Key, r placement.Record, keep bool) error {
	s.by.d.w.placeTrail.notes(s.by, key, trace.PlaceStep{Do: "Remove", Version: r.Version, Token: r.Token})
	return s.Storage.Remove(context.WithValue(ctx, placedKey{}, &placed{key, r, true}), tenant, key, r, keep)
}

// note adds a step for an actor.
func (t *placeTrail) note(key placement.Key, s trace.PlaceStep) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.steps == nil {
		t.steps = map[placement.Key][]trace.PlaceStep{}
		for _, k := range actorKeys {
			t.steps[k] = nil
		}
	}
	if t.w.records.life == 0 {
		if s.At == 0 {
			s.At, s.StoreMS = time.Since(t.w.began), t.w.records.now()
		}
		t.steps[key] = append(t.steps[key], s)
	}
}

// notes adds a step of a host. What a driver does after the end of its process is not done.
func (t *placeTrail) notes(h *host, key placement.Key, s trace.PlaceStep) {
	if h.link.gone.Load() {
		return
	}
	s.Host, s.Authority = h.link.name, h.d.name+":1"
	t.note(key, s)
}

// all adds a step for each actor.
func (t *placeTrail) all(s trace.PlaceStep) {
	for _, key := range actorKeys {
		t.note(key, s)
	}
}

// deliver has the store carry a message out that may be about an activation.
func (t *placeTrail) deliver(m *message) {
	var before placement.Record
	if m.placed != nil {
		before = t.load(m.placed.key)
	}
	if m.err = m.do(t.w.records); m.placed == nil || errors.Is(m.err, errLater) || errors.Is(m.err, errFenced) {
		return
	}
	after, killed := t.load(m.placed.key), errors.Is(m.err, errKilled) || errors.Is(m.err, record.ErrUnconfirmed)
	if killed && after.Version == before.Version && after.Owner == before.Owner {
		return // before the commit
	}
	r, carriedOut := m.placed.record, killed || m.err == nil
	s := trace.PlaceStep{Host: m.from.name, Authority: m.from.d.name + ":1", Life: r.Owner.Token, Version: r.Version, Token: r.Token}
	again := before.Version == r.Version && before.Owner == r.Owner
	switch {
	case m.placed.remove && carriedOut:
		s.Do, s.Stored = "Remove", true
	case m.placed.remove || again || carriedOut && after.Version != r.Version:
		return
	case carriedOut:
		s.Do = "Written"
	default:
		s.Do = "Outrun"
	}
	t.note(m.placed.key, s)
}

func (t *placeTrail) load(key placement.Key) placement.Record {
	r, err := storage.OnRecords(t.w.records).Load(context.Background(), "t", key)
	must(err, nil)
	return r
}

// membership notes what the store did with the lock of a membership.
func (t *placeTrail) membership(m *message, l lock.Lease, s trace.LockStep) {
	authority, is := strings.CutPrefix(m.request.Key, membersPrefix)
	if !is {
		return
	}
	step := trace.PlaceStep{Do: "Grant", Host: m.from.name, Authority: authority, Life: l.Token, TermMS: s.TermMS, At: s.At, StoreMS: s.StoreMS}
	if m.request.Op == lock.Release {
		step.Do = "Leave"
	} else {
		t.lives[m] = membershipOf{l.Token, s.TermMS, m.sent}
	}
	t.all(step)
}

// repeated notes that the store repeats its answer about the lock of a membership. The host may
// count the rest from now, or the term from before it asked first.
func (t *placeTrail) repeated(m *message, l lock.Lease) {
	if !strings.HasPrefix(m.request.Key, membersPrefix) {
		return
	}
	left := membershipOf{l.Token, l.RemainingMS, m.sent}
	for first, of := range t.lives {
		if first.request == m.request && of.life == l.Token && of.until() > left.until() {
			left = of
		}
	}
	t.lives[m] = left
}

func (of membershipOf) until() time.Duration {
	return of.sent + time.Duration(of.termMS)*time.Millisecond
}

// joined notes that a host hears of its membership.
func (t *placeTrail) joined(m *message) {
	if of, is := t.lives[m]; is {
		authority := strings.TrimPrefix(m.request.Key, membersPrefix)
		t.all(trace.PlaceStep{Do: "Joined", Host: m.from.name, Authority: authority, Life: of.life, TermMS: of.termMS, Sent: of.sent})
	}
}

// follow judges the steps of each actor.
func (t *placeTrail) follow() {
	for _, key := range slices.SortedFunc(maps.Keys(t.steps), placement.Key.Compare) {
		slices.SortStableFunc(t.steps[key], func(a, b trace.PlaceStep) int { return cmp.Compare(a.At, b.At) }) // as in lockTrail.follow
		one := trace.Placement{Steps: t.steps[key], Promise: placement.MaxPromise, Patience: patienceOfHosts}
		r := one.Check()
		t.w.placeSteps += len(one.Steps)
		if len(r.Broken) > 0 {
			t.w.broken("no step of docs/model/Placement.tla, actor %v: %s", key, r.Broken[0])
		}
	}
}
