package lock

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	t0   int64 = 1_800_000_000_000 // Unix ms
	term int64 = 30_000
)

// ask is a request about one key.
func ask(op Op, owner, requestID string) Request {
	r := Request{Op: op, Tenant: "default", Key: "k", Owner: owner, RequestID: requestID}
	switch op {
	case Acquire:
		r.LeaseID, r.TTLMS = fmt.Sprintf("%032x", len(requestID)), term
	case Renew:
		r.TTLMS = term
	}
	return r
}

// TestTransitions is section 3 of LS-SPEC-001, at the moments that matter: the
// lease of alice was acquired at t0.
func TestTransitions(t *testing.T) {
	held, _, err := Apply(Known{}, ask(Acquire, "alice", "a"), t0)
	if err != nil {
		t.Fatal(err)
	}
	released, _, err := Apply(Known{State: held}, ask(Release, "alice", "r"), t0)
	if err != nil {
		t.Fatal(err)
	}
	var heldError *HeldError
	last, end := t0+term-1, t0+term
	for _, test := range []struct {
		name   string
		state  State
		op     Op
		owner  string
		nowMS  int64
		status Status // after it; "" with an error
		err    error  // errHeld for a HeldError
	}{
		{"none/acquire", State{}, Acquire, "alice", t0, Active, nil},
		{"none/renew", State{}, Renew, "alice", t0, "", ErrNotOwned},
		{"none/release", State{}, Release, "alice", t0, "", ErrNotOwned},

		{"ACTIVE/acquire by another", held, Acquire, "bob", t0, "", errHeld},
		{"ACTIVE/acquire by the owner", held, Acquire, "alice", t0, "", errHeld},
		{"ACTIVE/acquire in the last millisecond", held, Acquire, "bob", last, "", errHeld},
		{"ACTIVE/renew", held, Renew, "alice", t0, Active, nil},
		{"ACTIVE/renew in the last millisecond", held, Renew, "alice", last, Active, nil},
		{"ACTIVE/renew by another", held, Renew, "bob", t0, "", ErrNotOwned},
		{"ACTIVE/release", held, Release, "alice", t0, Released, nil},
		{"ACTIVE/release in the last millisecond", held, Release, "alice", last, Released, nil},
		{"ACTIVE/release by another", held, Release, "bob", t0, "", ErrNotOwned},

		{"EXPIRED/acquire", held, Acquire, "bob", end, Active, nil},
		{"EXPIRED/acquire by the owner", held, Acquire, "alice", end, Active, nil},
		{"EXPIRED/renew", held, Renew, "alice", end, "", ErrExpired},
		{"EXPIRED/release", held, Release, "alice", end, "", ErrExpired},
		{"EXPIRED/renew by another", held, Renew, "bob", end, "", ErrNotOwned},

		{"RELEASED/acquire", released, Acquire, "bob", t0, Active, nil},
		{"RELEASED/renew", released, Renew, "alice", t0, "", ErrNotOwned},
		{"RELEASED/release", released, Release, "alice", t0, "", ErrNotOwned},
		{"RELEASED/renew after the end", released, Renew, "alice", end, "", ErrNotOwned},
	} {
		t.Run(test.name, func(t *testing.T) {
			next, l, err := Apply(Known{State: test.state}, ask(test.op, test.owner, "new"), test.nowMS)
			if errors.As(err, &heldError) {
				err = errHeld
			}
			if !errors.Is(err, test.err) {
				t.Fatalf("error is %v, want %v", err, test.err)
			}
			if err != nil {
				if !reflect.DeepEqual(next, test.state) {
					t.Errorf("refused, it changed the state to %+v", next)
				}
				return
			}
			if l.State != test.status || next.Status != test.status {
				t.Errorf("the lease is %s, the state %s, want %s", l.State, next.Status, test.status)
			}
			wantToken, wantEnd := test.state.Token, test.state.ExpiresMS
			if test.op == Acquire {
				wantToken++
			}
			if test.op != Release {
				wantEnd = test.nowMS + term
			}
			if l.Token != wantToken || l.ExpiresMS != wantEnd || l.Owner != test.owner {
				t.Errorf("the lease is %+v, want token %d and end %d", l, wantToken, wantEnd)
			}
		})
	}
}

var errHeld = errors.New("held")

// TestKnownToken is what the core makes of a store that deletes or forgets.
func TestKnownToken(t *testing.T) {
	micros := t0 * 1000
	for _, test := range []struct {
		name  string
		known Known
		want  int64 // the token of the next lease
	}{
		{"first of all", Known{}, 1},
		{"known", Known{State: State{Token: 7}}, 8},
		{"deleted", Known{Floor: 100}, 101},
		{"known, others deleted", Known{State: State{Token: 7}, Floor: 100}, 8},
		{"may be forgotten", Known{Incarnation: "b"}, micros + 1},
		{"may be forgotten, deleted at a later time", Known{Floor: micros + 50, Incarnation: "b"}, micros + 51},
		{"may be forgotten, deleted before", Known{Floor: 50, Incarnation: "b"}, micros + 1},
		{"of this life", Known{State: State{Token: 7, Incarnation: "b"}, Incarnation: "b"}, 8},
		{"of another life", Known{State: State{Token: 7, Incarnation: "a"}, Incarnation: "b"}, micros + 1},
		{"of another life, by a clock ahead", Known{State: State{Token: micros + 9, Incarnation: "a"}, Incarnation: "b"}, micros + 10},
		{"from before the store had lives", Known{State: State{Token: 7}, Incarnation: "b"}, micros + 1},
	} {
		next, l, err := Apply(test.known, ask(Acquire, "alice", "a"), t0)
		if err != nil || l.Token != test.want || next.Incarnation != test.known.Incarnation {
			t.Errorf("%s: token %d under %q, error %v, want %d", test.name, l.Token, next.Incarnation, err, test.want)
		}
	}
}

// TestStatesShareNothing: a store may apply one state twice, when its first write
// was overtaken.
func TestStatesShareNothing(t *testing.T) {
	state, _, _ := Apply(Known{}, ask(Acquire, "alice", "a"), t0)
	for i := range 2 * MaxReceipts {
		one, _, _ := Apply(Known{State: state}, ask(Renew, "alice", fmt.Sprint("one-", i)), t0)
		text := mustJSON(one)
		two, _, _ := Apply(Known{State: state}, ask(Renew, "alice", fmt.Sprint("two-", i)), t0)
		if mustJSON(one) != text {
			t.Fatalf("after %d renewals, the next one changed what another had made of the same state", i)
		}
		state = two
	}
}

func TestTokensUsedUp(t *testing.T) {
	last := Known{State: State{Token: MaxToken - 1}}
	state, l, err := Apply(last, ask(Acquire, "alice", "a"), t0)
	if err != nil || l.Token != MaxToken {
		t.Fatalf("the last token is %d, error %v", l.Token, err)
	}
	if _, _, err = Apply(Known{State: state}, ask(Acquire, "alice", "b"), t0+term); !errors.Is(err, ErrTokensUsedUp) {
		t.Errorf("after it, the error is %v", err)
	}
}

// TestFence: only what would grant is held back.
func TestFence(t *testing.T) {
	held, _, _ := Apply(Known{}, ask(Acquire, "alice", "a"), t0)
	k := Known{State: held, FencedUntilMS: t0 + 2*term, FenceReason: "restarted"}
	for _, r := range []Request{ask(Acquire, "alice", "a"), ask(Renew, "alice", "b"), ask(Release, "alice", "c")} {
		if _, _, err := Apply(k, r, t0+1); err != nil {
			t.Errorf("%v in the fence: %v", r.Op, err)
		}
	}
	var fenced *FencedError
	_, _, err := Apply(k, ask(Acquire, "bob", "d"), t0+term)
	if !errors.As(err, &fenced) || fenced.UntilMS != t0+2*term || fenced.RemainingMS != term || !strings.Contains(err.Error(), "restarted") {
		t.Errorf("in the fence, the error is %v", err)
	}
	if _, _, err = Apply(k, ask(Acquire, "bob", "d"), t0+2*term); err != nil {
		t.Errorf("after the fence: %v", err)
	}
}

func TestIdle(t *testing.T) {
	held, _, _ := Apply(Known{}, ask(Acquire, "alice", "a"), t0)
	released, _, _ := Apply(Known{State: held}, ask(Release, "alice", "r"), t0)
	idle := t0 + term + KeepIdle.Milliseconds()
	for _, s := range []State{held, released} {
		if s.Idle(idle-1) || !s.Idle(idle) {
			t.Errorf("%s: idle %v before %d, %v at it", s.Status, s.Idle(idle-1), idle, s.Idle(idle))
		}
	}
}

// TestHeldErrorShowsNoSecret: with the request ID, somebody else of the same name
// could pass for the holder.
func TestHeldErrorShowsNoSecret(t *testing.T) {
	held, _, _ := Apply(Known{}, ask(Acquire, "alice", "secret-request"), t0)
	_, _, err := Apply(Known{State: held}, ask(Acquire, "bob", "b"), t0)
	if text := fmt.Sprint(err); strings.Contains(text, "secret-request") || strings.Contains(text, held.LeaseID) || !strings.Contains(text, "alice") {
		t.Errorf("it says %q", text)
	}
}

// TestCoreInvariants runs the core on a clock that goes both ways, on a store
// that deletes idle keys, restarts, and sometimes forgets.
func TestCoreInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			k      Known
			now    = t0
			latest int64 // the greatest time so far
			least  = t0  // a server that has forgotten must not show an earlier time than the one before it
			tokens int64 // the greatest so far
			grants = map[string]int{}
			serial int
		)
		if rapid.Bool().Draw(t, "may forget") {
			k.Incarnation = "0"
		}
		sent := []Request{}
		send := func(r Request) {
			before, text := k.State, mustJSON(k.State)
			active := k.State.Expire(now).Status == Active
			next, l, err := Apply(k, r, now)
			if mustJSON(before) != text {
				t.Fatalf("Apply changed the state that it was given")
			}
			k.State = next
			if mustJSON(fromJSON(next)) != mustJSON(next) {
				t.Fatalf("the state is not the same after it was written and read: %+v", next)
			}
			if err != nil || l.Repeated {
				if mustJSON(next) != text {
					t.Fatalf("nothing was done, and the state is %+v after %+v", next, before)
				}
				return
			}
			if len(next.Receipts) > MaxReceipts {
				t.Fatalf("%d receipts are kept", len(next.Receipts))
			}
			switch {
			case r.Op != Acquire && (!active || before.Owner != r.Owner):
				t.Fatalf("LS-INV-003: %+v was carried out on %+v at %d", r, before, now)
			case r.Op != Acquire:
				return
			case active:
				t.Fatalf("LS-INV-001: a lease was granted beside %+v at %d", before, now)
			case l.Token <= tokens:
				t.Fatalf("LS-INV-002: token %d after %d", l.Token, tokens)
			}
			tokens = l.Token
			if grants[r.RequestID]++; r.RequestID != "" && grants[r.RequestID] > 1 && len(sent) <= MaxReceipts {
				t.Fatalf("LS-ACC-04: request %s was granted twice", r.RequestID)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				serial++
				r := ask(rapid.SampledFrom([]Op{Acquire, Acquire, Renew, Release}).Draw(t, "op"), rapid.SampledFrom([]string{"alice", "bob"}).Draw(t, "owner"), fmt.Sprint(serial))
				r.LeaseID = ""
				if r.Op == Acquire {
					r.LeaseID = fmt.Sprintf("%032x", serial)
				}
				send(r)
				sent = append(sent, r)
			},
			"again": func(t *rapid.T) {
				if len(sent) == 0 {
					t.Skip()
				}
				send(rapid.SampledFrom(sent[max(0, len(sent)-MaxReceipts/2):]).Draw(t, "again"))
			},
			"time": func(t *rapid.T) {
				now = max(least, now+rapid.Int64Range(-2*term, 3*term).Draw(t, "ms"))
				latest = max(latest, now)
			},
			"idle": func(t *rapid.T) {
				now = max(latest, k.State.ExpiresMS+KeepIdle.Milliseconds())
				latest = now
				if k.State.Token > 0 && k.State.Idle(now) {
					k.Floor, k.State = max(k.Floor, k.State.Token), State{}
					sent = nil // its receipts are gone
				}
			},
			"forget": func(t *rapid.T) {
				if k.Incarnation == "" {
					t.Skip()
				}
				// A fence has passed, and the clock is not behind the one before.
				now = max(latest, k.State.ExpiresMS) + 1
				latest, least = now, now
				k = Known{Incarnation: fmt.Sprint(now)}
				sent = nil
			},
		})
	})
}

func mustJSON(s State) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func fromJSON(s State) (out State) {
	if err := json.Unmarshal([]byte(mustJSON(s)), &out); err != nil {
		panic(err)
	}
	return out
}

func TestLimits(t *testing.T) {
	if MinTTL < time.Millisecond || MaxTTL != 86_400*time.Second {
		t.Errorf("terms are %v to %v", MinTTL, MaxTTL)
	}
	r := ask(Acquire, "alice", "a")
	r.TTLMS = 1 << 62 // does not overflow into something valid
	if err := r.Validate(); !errors.Is(err, ErrInvalid) {
		t.Errorf("a term of %d ms: %v", r.TTLMS, err)
	}
}
