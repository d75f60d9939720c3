package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/kazahana/kazahana/internal/lock"
)

// modelKeys and modelOwners are few, so that requests meet.
var (
	modelKeys   = []string{"a", "a/b", "錠"}
	modelOwners = []string{alice, bob}
)

// machine runs a store beside the core. The core is given the time that the
// store's answers tell.
type machine struct {
	*suite
	states map[string]lock.State
	sent   []lock.Request
	nowMS  int64 // the store's clock: exactly, once a lease was granted, where it can be set; else this or more
}

// checkModel has the store and the core do the same at random, and compares
// every answer.
func checkModel(t *rapid.T, s *suite) {
	m := &machine{suite: s, states: map[string]lock.State{}}
	actions := map[string]func(*rapid.T){
		"acquire": func(t *rapid.T) { m.send(t, m.draw(t, lock.Acquire)) },
		"renew":   func(t *rapid.T) { m.send(t, m.draw(t, lock.Renew)) },
		"release": func(t *rapid.T) { m.send(t, m.draw(t, lock.Release)) },
		"repeat": func(t *rapid.T) {
			if len(m.sent) == 0 {
				t.Skip("nothing was sent")
			}
			r := rapid.SampledFrom(m.sent).Draw(t, "again")
			if r.Op == lock.Acquire && (r.RequestID == "" || rapid.Bool().Draw(t, "with another lease ID")) {
				r.LeaseID = m.next()
			}
			if rapid.IntRange(0, 7).Draw(t, "otherwise") == 0 {
				r.Owner = bob
			}
			m.send(t, r)
		},
		"get":    m.checkGet,
		"list":   m.checkList,
		"reopen": func(*rapid.T) { m.reopen(func() error { return nil }) },
	}
	if s.backend.Advance != nil {
		actions["pass"] = func(t *rapid.T) {
			ms := rapid.Int64Range(1, 3000).Draw(t, "ms")
			s.backend.Advance(time.Duration(ms) * time.Millisecond)
			m.nowMS += ms
		}
	}
	t.Repeat(actions)
}

func (m *machine) draw(t *rapid.T, op lock.Op) lock.Request {
	r := lock.Request{
		Op: op, Tenant: tenant, Key: rapid.SampledFrom(modelKeys).Draw(t, "key"), Owner: rapid.SampledFrom(modelOwners).Draw(t, "owner"),
	}
	if rapid.IntRange(0, 9).Draw(t, "with request ID") > 0 {
		r.RequestID = m.next()
	}
	switch {
	case op == lock.Acquire:
		r.LeaseID = m.next()
	case rapid.Bool().Draw(t, "with lease ID"):
		if r.LeaseID = m.states[r.Key].LeaseID; r.LeaseID == "" {
			r.LeaseID = m.next()
		}
	}
	if op != lock.Release {
		r.TTLMS = long
		if m.backend.Advance != nil {
			r.TTLMS = rapid.Int64Range(m.short(), m.short()+5000).Draw(t, "ttl")
		}
	}
	return r
}

// send has both do it.
func (m *machine) send(t *rapid.T, r lock.Request) {
	state := m.states[r.Key]
	got, gotErr := m.try(r)
	m.nowMS = max(m.nowMS, answerTime(got, gotErr))
	now := m.nowMS
	known := at(state, now)
	if gotErr == nil && r.Op == lock.Acquire && !got.Repeated {
		m.allowToken(&known, got.Token)
	}
	next, want, wantErr := lock.Apply(known, r)
	if a, b := verdict(gotErr), verdict(wantErr); a != b {
		t.Fatalf("%+v\non %+v at %d:\nthe store says %q: %v\nthe core says  %q: %v", r, state, now, a, gotErr, b, wantErr)
	}
	if gotErr == nil && got != want {
		t.Fatalf("%+v\non %+v at %d:\nthe store answers %+v\nthe core answers  %+v", r, state, now, got, want)
	}
	m.sent = append(m.sent, r)
	if wantErr == nil && !want.Repeated {
		m.states[r.Key] = next
	}
}

// at is what a store knows of a key in that state, by a clock that shows the time.
func at(s lock.State, nowMS int64) lock.Known {
	k := lock.Known{State: s, NowMS: nowMS}
	if s.Status == lock.Active {
		k.LeftMS = max(0, s.ExpiresMS-nowMS)
	}
	if s.Status == lock.Active && k.LeftMS == 0 {
		k.State.Status = lock.Expired
	}
	return k
}

// allowToken has the core take the store's word for a token that may jump.
func (m *machine) allowToken(k *lock.Known, token int64) {
	if m.backend.Jumps && token > k.State.Token {
		k.State.Token = token - 1
	}
}

// answerTime is the store's time at an answer, 0 where that does not tell it.
func answerTime(l lock.Lease, err error) int64 {
	var held *lock.HeldError
	switch {
	case errors.As(err, &held):
		return held.ExpiresMS - held.RemainingMS
	case err == nil && l.State == lock.Active:
		return l.ExpiresMS - l.RemainingMS
	}
	return 0
}

// verdict is the kind of an error, and all that a HeldError tells.
func verdict(err error) string {
	var held *lock.HeldError
	if errors.As(err, &held) {
		return fmt.Sprintf("%+v", *held)
	}
	for _, known := range []error{lock.ErrNotOwned, lock.ErrExpired, lock.ErrRequestReused, lock.ErrInvalid} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if err != nil {
		return "unknown: " + err.Error()
	}
	return "ok"
}

func (m *machine) checkGet(t *rapid.T) {
	k := rapid.SampledFrom(modelKeys).Draw(t, "key")
	got, err := m.store.Get(context.Background(), tenant, k)
	state, ok := m.states[k]
	if !ok || state.Token == 0 {
		if !errors.Is(err, lock.ErrNotFound) {
			t.Fatalf("Get of %q answers %+v, %v; nobody ever held it", k, got, err)
		}
		return
	}
	if err != nil {
		t.Fatalf("Get of %q: %v", k, err)
	}
	m.nowMS = max(m.nowMS, answerTime(got, nil))
	known := at(state, m.nowMS)
	if want := known.State.Lease(tenant, k, known.LeftMS); got != want {
		t.Fatalf("Get of %q answers %+v, want %+v", k, got, want)
	}
}

func (m *machine) checkList(t *rapid.T) {
	limit := rapid.IntRange(1, len(modelKeys)+1).Draw(t, "page")
	got := m.pages(limit)
	if !slices.IsSortedFunc(got, strings.Compare) {
		t.Fatalf("listed are %q, not in order", got)
	}
	for _, k := range modelKeys {
		l, err := m.store.Get(context.Background(), tenant, k)
		alive := err == nil && l.State == lock.Active
		if listed := slices.Contains(got, k); listed != alive {
			t.Fatalf("listed are %q, and %q is %+v", got, k, l)
		}
	}
}
