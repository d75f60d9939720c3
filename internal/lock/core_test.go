package lock

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/keyname"
	"github.com/kazahana/kazahana/internal/record"
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

// at is what a store knows of a key in that state, by a clock that shows the time.
func at(s State, nowMS int64) Known {
	k := Known{State: s, NowMS: nowMS, Life: s.Life}
	if s.Status == Active {
		k.LeftMS = max(0, s.ExpiresMS-nowMS)
	}
	if s.Status == Active && k.LeftMS == 0 {
		k.State.Status = Expired
	}
	return k
}

// TestKnownToken is what the core makes of a store that deletes or forgets (LS-INV-002).
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
		{"may be forgotten", Known{Life: 2, Floor: micros}, micros + 1},
		{"of this life", Known{State: State{Token: 7, Life: 2}, Life: 2, Floor: micros}, 8},
		{"of another life", Known{State: State{Token: 7, Life: 1}, Life: 2, Floor: micros}, micros + 1},
		{"of another life, by a clock ahead", Known{State: State{Token: micros + 9, Life: 1}, Life: 2, Floor: micros}, micros + 10},
	} {
		next, l, err := Apply(test.known, ask(Acquire, "alice", "a"))
		if err != nil || l.Token != test.want || next.Life != test.known.Life {
			t.Errorf("%s: token %d in life %d, error %v, want %d", test.name, l.Token, next.Life, err, test.want)
		}
	}
}

// TestStatesShareNothing: a store may apply one state twice, when its first write
// was overtaken.
func TestStatesShareNothing(t *testing.T) {
	state, _, _ := Apply(at(State{}, t0), ask(Acquire, "alice", "a"))
	for i := range 3 * MaxReceipts {
		one, _, _ := Apply(at(state, t0), ask(Renew, "alice", fmt.Sprint("one-", i)))
		text := fmt.Sprint(one)
		two, _, _ := Apply(at(state, t0), ask(Renew, "alice", fmt.Sprint("two-", i)))
		if fmt.Sprint(one) != text {
			t.Fatalf("after %d renewals, the next one changed what another had made of the same state", i)
		}
		state = two
	}
}

func TestTokensUsedUp(t *testing.T) {
	state, l, err := Apply(at(State{Token: MaxToken - 1}, t0), ask(Acquire, "alice", "a"))
	if err != nil || l.Token != MaxToken {
		t.Fatalf("the last token is %d, error %v", l.Token, err)
	}
	if _, _, err = Apply(at(state, t0+term), ask(Acquire, "alice", "b")); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "used up") {
		t.Errorf("after it, the error is %v", err)
	}
}

// TestFence: only what would grant is held back.
func TestFence(t *testing.T) {
	held, _, _ := Apply(at(State{}, t0), ask(Acquire, "alice", "a"))
	fenced := func(nowMS int64) Known {
		k := at(held, nowMS)
		k.FencedUntilMS, k.FenceReason = t0+2*term, "restarted"
		return k
	}
	for _, r := range []Request{ask(Acquire, "alice", "a"), ask(Renew, "alice", "b"), ask(Release, "alice", "c")} {
		if _, _, err := Apply(fenced(t0+1), r); err != nil {
			t.Errorf("%v in the fence: %v", r.Op, err)
		}
	}
	var refused *FencedError
	_, _, err := Apply(fenced(t0+term), ask(Acquire, "bob", "d"))
	if !errors.As(err, &refused) || refused.UntilMS != t0+2*term || refused.RemainingMS != term || !strings.Contains(err.Error(), "restarted") {
		t.Errorf("in the fence, the error is %v", err)
	}
	if _, _, err = Apply(fenced(t0+2*term), ask(Acquire, "bob", "d")); err != nil {
		t.Errorf("after the fence: %v", err)
	}
}

// TestHeldErrorShowsNoSecret: with the request ID, another caller of the same name could
// pass for the holder.
func TestHeldErrorShowsNoSecret(t *testing.T) {
	held, _, _ := Apply(at(State{}, t0), ask(Acquire, "alice", "secret-request"))
	_, _, err := Apply(at(held, t0), ask(Acquire, "bob", "b"))
	if text := fmt.Sprint(err); strings.Contains(text, "secret-request") || strings.Contains(text, held.LeaseID) || !strings.Contains(text, "alice") {
		t.Errorf("it says %q", text)
	}
}

// A store may be late to see the end of a lease: then next to nothing is left of it, and
// it is held.
func TestHeldAtItsEnd(t *testing.T) {
	held, _, _ := Apply(at(State{}, t0), ask(Acquire, "alice", "a"))
	var told *HeldError
	if _, _, err := Apply(Known{State: held, NowMS: t0 + term}, ask(Acquire, "bob", "b")); !errors.As(err, &told) || told.RemainingMS != 1 {
		t.Errorf("the error is %+v, want a HeldError with 1 ms left", err)
	}
}

// TestCoreInvariants runs the core on a clock that goes both ways, on a store
// that deletes idle keys, restarts, and sometimes forgets. Requests come again at any time, by
// their own process or another. Those within the memory are carried out once (LS-ACQ-004,
// LS-RNW-003, LS-REL-003, LS-ACC-04), and older ones are judged like new ones.
func TestCoreInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			state   State
			floor   int64
			life    uint64
			now     = t0
			latest  = t0                // the greatest time so far
			least   = t0                // a server that has forgotten must not show an earlier time than the one before it
			tokens  int64               // the greatest so far
			carried int                 // how many requests
			done    = map[string]deed{} // by request ID
			serial  int
		)
		if rapid.Bool().Draw(t, "may forget") {
			life, floor = 1, t0*1000
		}
		sent := []Request{}
		send := func(r Request) {
			k := at(state, now)
			k.Floor, k.Life = floor, life
			before, text := k.State, fmt.Sprint(k.State)
			next, l, err := Apply(k, r)
			if fmt.Sprint(k.State) != text {
				t.Fatalf("Apply changed the state that it was given")
			}
			if d, ok := done[r.RequestID]; ok && carried-d.number < MaxReceipts || r.RequestID != "" && before.RequestID == keyname.KeptRequestID(r.RequestID) {
				if want := d.again(k, r); fmt.Sprint(l, err) != fmt.Sprint(want.lease, err) || !errors.Is(err, want.err) || fmt.Sprint(next) != text {
					t.Fatalf("after %d others, %+v answers %+v, %v, want %+v; of %+v", carried-d.number, r, l, err, want, before)
				}
				return
			}
			if err != nil || l.Repeated {
				if fmt.Sprint(next) != text {
					t.Fatalf("nothing was done, and the state is %+v after %+v", next, before)
				}
				return
			}
			state = next
			if read := written(next, r.Op == Acquire); !reflect.DeepEqual(read, next) {
				t.Fatalf("written and read, %+v is %+v", next, read)
			}
			if len(next.Answers) > MaxReceipts || len(next.Releases) > MaxReceipts {
				t.Fatalf("%d answers and %d releases are kept", len(next.Answers), len(next.Releases))
			}
			carried++
			if r.RequestID != "" {
				done[r.RequestID] = deed{carried, r, l}
			}
			switch { // seed 002-4-2
			case r.Op != Acquire && (before.Status != Active || before.Owner != r.Owner || r.LeaseID != "" && before.LeaseID != r.LeaseID):
				t.Fatalf("LS-INV-003: %+v was carried out on %+v at %d", r, before, now)
			case r.Op != Acquire:
				return
			case before.Status == Active:
				t.Fatalf("LS-INV-001: a lease was granted beside %+v at %d", before, now)
			case l.Token <= tokens:
				t.Fatalf("LS-INV-002: token %d after %d", l.Token, tokens)
			}
			tokens = l.Token
		}
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				serial++
				r := ask(rapid.SampledFrom([]Op{Acquire, Acquire, Renew, Release}).Draw(t, "op"), rapid.SampledFrom([]string{"alice", "bob"}).Draw(t, "owner"), fmt.Sprint(serial))
				r.LeaseID = ""
				if r.Op == Acquire {
					r.LeaseID = fmt.Sprintf("%032x", serial)
				} else if rapid.Bool().Draw(t, "named") {
					r.LeaseID = state.LeaseID
				}
				switch rapid.IntRange(0, 3).Draw(t, "request ID") {
				case 0: // short
				case 1:
					r.RequestID = ""
				case 2:
					r.RequestID = fmt.Sprintf("a request ID of more than 16 bytes-%d", serial)
				case 3:
					if r.Op == Acquire {
						r.RequestID = r.LeaseID
					}
				}
				send(r)
				if r.RequestID != "" {
					sent = append(sent, r)
				}
			},
			"again": func(t *rapid.T) {
				if len(sent) == 0 {
					t.Skip()
				}
				r := sent[len(sent)-1-min(rapid.IntRange(0, 3*MaxReceipts).Draw(t, "how old"), len(sent)-1)]
				if r.Op == Acquire && rapid.Bool().Draw(t, "by another process") {
					serial++
					r.LeaseID = fmt.Sprintf("%032x", serial)
				}
				send(r)
			},
			"reused": func(t *rapid.T) {
				if len(sent) == 0 {
					t.Skip()
				}
				r := sent[len(sent)-1-min(rapid.IntRange(0, MaxReceipts).Draw(t, "how old"), len(sent)-1)]
				switch rapid.IntRange(0, 3).Draw(t, "with another") {
				case 0:
					r.Owner = "carol"
				case 1:
					if r.Op != Release { // which has none
						r.TTLMS++
					}
				case 3:
					if r.Op != Acquire {
						r.LeaseID = strings.Repeat("f", 32)
					}
				case 2:
					if r.Op, r.TTLMS = r.Op%Release+1, term; r.Op == Release {
						r.TTLMS = 0
					}
					if r.Op == Acquire { // the ID of a new lease is new
						serial++
						r.LeaseID = fmt.Sprintf("%032x", serial)
					}
				}
				send(r)
			},
			"time": func(t *rapid.T) {
				now = max(least, now+rapid.Int64Range(-2*term, 3*term).Draw(t, "ms"))
				latest = max(latest, now)
			},
			"idle": func(t *rapid.T) {
				now = max(latest, state.ExpiresMS+KeepIdle.Milliseconds())
				latest = now
				floor, state = max(floor, state.Token), State{}
				sent = nil
				clear(done)
			},
			"forget": func(t *rapid.T) {
				if life == 0 {
					t.Skip()
				}
				// A fence has passed, and the clock is not behind the one before.
				now = max(latest, state.ExpiresMS) + 1
				latest, least = now, now
				state, life, floor = State{}, life+1, now*1000
				sent = nil
				clear(done)
			},
		})
	})
}

// deed is a request that was carried out as the so manieth, and its answer.
type deed struct {
	number  int
	request Request
	lease   Lease
}

// outcome is an answer: err stands for all errors that wrap it.
type outcome struct {
	lease Lease
	err   error
}

// again is the answer to a request with the ID of the deed, by the specification.
func (d deed) again(k Known, r Request) outcome {
	done := d.request
	same := r.Op == done.Op && r.Owner == done.Owner && r.TTLMS == done.TTLMS &&
		(r.Op == Acquire || r.LeaseID == "" || r.LeaseID == d.lease.LeaseID)
	present := k.State.Lease(r.Tenant, r.Key, k.LeftMS)
	present.Repeated = true
	latest := k.State.LeaseID == d.lease.LeaseID
	switch {
	case !same:
		return outcome{err: ErrRequestReused}
	case r.Op == Release:
		l := d.lease
		l.Repeated = true
		return outcome{lease: l}
	case latest && k.State.Status == Active:
		return outcome{lease: present}
	case r.Op == Acquire:
		return outcome{err: ErrRequestReused}
	case latest && k.State.Status == Expired:
		return outcome{err: ErrExpired}
	}
	return outcome{err: ErrNotOwned}
}

// Beyond the memory a renewal or a release is refused if its lease is not the owner's any more,
// and an acquire may take a free lock, under a new token (LS-RNW-003, LS-REL-003, LS-ACC-04).
func TestOlderRequestsAreJudgedAnew(t *testing.T) {
	state := State{}
	step := func(r Request) (Lease, error) {
		next, l, err := Apply(at(state, t0), r)
		state = next
		return l, err
	}
	acquire := ask(Acquire, "alice", "acquire")
	first, _ := step(acquire)
	renew, release := ask(Renew, "alice", "renew"), ask(Release, "alice", "release")
	renew.LeaseID, release.LeaseID = first.LeaseID, first.LeaseID
	for _, r := range []Request{renew, release} {
		if _, err := step(r); err != nil {
			t.Fatal(err)
		}
	}
	for n := range MaxReceipts + 1 {
		for _, op := range []Op{Acquire, Release} {
			if _, err := step(ask(op, "bob", fmt.Sprint(op, n))); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, r := range []Request{renew, release} {
		if l, err := step(r); !errors.Is(err, ErrNotOwned) {
			t.Errorf("%+v answers %+v, %v", r, l, err)
		}
	}
	l, err := step(acquire)
	if err != nil || l.Repeated || l.Token != first.Token+MaxReceipts+2 {
		t.Errorf("the acquire answers %+v, %v", l, err)
	}
}

// A list shows a lease whole, with the longest note and as many receipts as there are.
func TestHeadHasTheNote(t *testing.T) {
	s := full(t0 * 1000)
	if s.Note = strings.Repeat("k", MaxNote); written(s, false).Note != s.Note {
		t.Error("the note has changed")
	}
}

// written is the state once it was written and read.
func written(s State, fresh bool) State {
	r := record.Record{Value: s.value(fresh)}
	if s.Status == Active {
		r.EndMS = s.ExpiresMS
	}
	read, err := parseState(r, false)
	if err != nil {
		panic(err)
	}
	r.Value = r.Value[:min(len(r.Value), record.MaxHead)]
	head, err := parseState(r, true)
	head.Answers, head.Releases = read.Answers, read.Releases
	if head.RequestID == "" { // a head need not have it
		head.RequestID = read.RequestID
	}
	if err != nil || !reflect.DeepEqual(head, read) {
		panic(fmt.Sprintf("the head of %+v is %+v, %v", read, head, err))
	}
	return read
}

// full is a lock of the greatest size: with the longest names, and as many receipts as a key
// has, each of another owner and another lease. The first token was that one.
func full(token int64) State {
	s := State{Token: token, Life: 1}
	owner := func(n int) string { return fmt.Sprintf("%0128d", n) }
	for n := range 2 * MaxReceipts {
		for _, op := range []Op{Acquire, Renew, Release} {
			r := ask(op, owner(n), fmt.Sprintf("%0128d", 3*n+int(op)))
			if op == Acquire {
				r.LeaseID, r.TTLMS = fmt.Sprintf("%032x", n+1), MaxTTL.Milliseconds()
			} else if op == Renew {
				r.TTLMS = MaxTTL.Milliseconds()
			}
			var err error
			if s, _, err = Apply(at(s, t0+int64(n)*1000), r); err != nil {
				panic(err)
			}
		}
	}
	s, _, err := Apply(at(s, t0+int64(100_000)), ask(Acquire, owner(99), fmt.Sprintf("%0128d", 999)))
	if err != nil || len(s.Answers) != MaxReceipts || len(s.Releases) != MaxReceipts {
		panic(fmt.Sprint(len(s.Answers), len(s.Releases), err))
	}
	return s
}

// A lock takes about a hundred bytes, and with as many receipts as there are less than 2 KB.
func TestSizeOfRecord(t *testing.T) {
	for _, requestID := range []string{"", "0123456789abcdef0123456789abcdef"} {
		r := ask(Acquire, "host-0123+89abcdef/1000", requestID)
		s, _, _ := Apply(at(State{Life: 1, Token: t0 * 1000}, t0), r)
		if n := len(s.value(true)); n > 70+min(len(requestID), keyname.MaxKept) {
			t.Errorf("a lock takes %d bytes", n)
		}
		before := len(s.value(false))
		if s, _, _ = Apply(at(s, t0), ask(Renew, r.Owner, requestID)); len(s.value(false)) > before+min(len(requestID), 22) {
			t.Errorf("a receipt takes %d bytes", len(s.value(false))-before)
		}
	}
	s := full(t0 * 1000)
	if n := len(s.value(false)); n > 1780 {
		t.Errorf("a lock with all receipts takes %d bytes", n)
	}
}

// FuzzValue: a value that was not written by this program is an error, and no panic.
func FuzzValue(f *testing.F) {
	s, _, _ := Apply(at(State{}, t0), ask(Acquire, "alice", "a"))
	f.Add(s.value(true), false)
	s, _, _ = Apply(at(s, t0), ask(Release, "alice", "r"))
	f.Add(s.value(false), true)
	f.Fuzz(func(t *testing.T, value []byte, head bool) {
		s, err := parseState(record.Record{Value: value, EndMS: t0}, head)
		if err == nil && (s.Token < 1 || !leaseIDForm.Matches(s.LeaseID)) {
			t.Errorf("%x is read as %+v", value, s)
		}
	})
}
