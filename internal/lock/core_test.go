package lock

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/receipt"
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

// apart are the windows of a key, and when each was written.
type apart map[string]window

type window struct {
	value  []byte
	doneMS int64
}

// apply is Apply for a store that has windows, written and read, and shows those that are
// asked for.
func (a apart) apply(k Known, r Request) (State, Lease, error) {
	next, l, err := Apply(k, r)
	if unseen, ok := errors.AsType[*receipt.UnseenError](err); ok {
		if k.Windows != nil {
			panic("the windows were shown: " + err.Error())
		}
		v := record.View{Records: map[string]record.Record{}}
		for _, name := range unseen.Windows {
			if w, ok := a[name]; ok && k.NowMS-w.doneMS <= receipt.Keep.Milliseconds() {
				v.Records[windowPath(r.Tenant, r.Key, name)] = record.Record{Value: w.value}
			}
		}
		if k.Windows, err = windowsOf(v, r.Tenant, r.Key, unseen.Windows); err != nil {
			panic(err)
		}
		next, l, err = Apply(k, r)
	}
	if err == nil && !l.Repeated {
		for name, all := range next.Moved {
			a[name] = window{windowValue(all), k.NowMS}
		}
		next.Moved = nil
	}
	return next, l, err
}

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
	for i := range 2 * MaxReceipts {
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
	if _, _, err = Apply(at(state, t0+term), ask(Acquire, "alice", "b")); !errors.Is(err, ErrTokensUsedUp) {
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
// that deletes idle keys, restarts, and sometimes forgets.
func TestCoreInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			state  State
			floor  int64
			life   uint64
			now    = t0
			latest = t0                 // the greatest time so far
			least  = t0                 // a server that has forgotten must not show an earlier time than the one before it
			tokens int64                // the greatest so far
			done   = map[string]int64{} // when requests were carried out
			serial int
			moved  = apart{}
		)
		if rapid.Bool().Draw(t, "may forget") {
			life, floor = 1, t0*1000
		}
		sent := []Request{}
		send := func(r Request) {
			k := at(state, now)
			k.Floor, k.Life = floor, life
			before, text := k.State, fmt.Sprint(k.State)
			next, l, err := moved.apply(k, r)
			if fmt.Sprint(k.State) != text {
				t.Fatalf("Apply changed the state that it was given")
			}
			if at, ok := done[r.RequestID]; ok && r.Op != Acquire && latest-at <= receipt.Keep.Milliseconds() && errors.As(err, new(*OldRequestError)) {
				t.Fatalf("%+v was carried out %d ms ago, and is forgotten", r, latest-at)
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
			if kept := len(next.Receipts); kept > 2*MaxReceipts+receipt.MaxUntimed+1 || len(next.Marks) > MaxMarks {
				t.Fatalf("%d receipts are kept, and %d marks", kept, len(next.Marks))
			}
			if n := leaseReceipts(next); n > 2*MaxReceipts {
				t.Fatalf("%d receipts of requests with the ID of their lease are kept", n)
			}
			if done[r.RequestID] > 0 {
				t.Fatalf("LS-ACC-04: %+v was carried out twice", r)
			}
			if r.RequestID != "" {
				done[r.RequestID] = latest
			}
			switch {
			case r.Op != Acquire && (before.Status != Active || before.Owner != r.Owner):
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
				}
				switch rapid.IntRange(0, 9).Draw(t, "request ID") {
				case 0: // without a time
				case 1:
					r.RequestID = ""
				case 2, 3:
					r.RequestID = cmp.Or(r.LeaseID, r.RequestID)
				default:
					made := now
					if r.Owner == "bob" { // whose clock is ahead
						made += receipt.MaxAhead.Milliseconds() / 2
					}
					r.RequestID = timedID(made, serial)
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
				r := rapid.SampledFrom(sent).Draw(t, "again")
				if _, ok := state.find(r.RequestID); !ok && r.RequestID == r.LeaseID {
					t.Skip() // a host repeats it at once or never
				}
				if _, ok := receipt.MadeAt(r.RequestID, math.MaxInt64); !ok && done[r.RequestID] > 0 && latest-done[r.RequestID] > receipt.Keep.Milliseconds() {
					t.Skip() // its receipt may be gone
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
			},
			"forget": func(t *rapid.T) {
				if life == 0 {
					t.Skip()
				}
				// A fence has passed, and the clock is not behind the one before.
				now = max(latest, state.ExpiresMS) + 1
				latest, least = now, now
				state, life, floor = State{}, life+1, now*1000
				sent, moved = nil, apart{}
				clear(done)
			},
		})
	})
}

func leaseReceipts(s State) (n int) {
	for _, r := range s.Receipts {
		if r.RequestID == r.LeaseID {
			n++
		}
	}
	return n
}

// A host that makes up one ID for a request and its lease is not refused, whatever its clock
// shows, and its requests do not pile up in the record.
func TestLeaseIDAsRequestID(t *testing.T) {
	for name, made := range map[string]int64{"right": t0, "an hour behind": t0 - 3_600_000, "an hour ahead": t0 + 3_600_000, "random": 0} {
		state := State{}
		step := func(r Request) {
			t.Helper()
			next, _, err := Apply(at(state, t0), r)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			state = written(next, false)
		}
		for n := range 2 * receipt.MaxUntimed {
			r := ask(Acquire, "host", "")
			r.LeaseID = strings.ReplaceAll(timedID(made, n), "-", "")
			r.RequestID = r.LeaseID
			step(r)
			step(Request{Op: Release, Tenant: r.Tenant, Key: r.Key, Owner: r.Owner, LeaseID: r.LeaseID})
		}
		if n := len(state.Receipts); n != MaxReceipts || len(state.Marks) != 1 {
			t.Errorf("%s: the record has %d receipts and %d marks", name, n, len(state.Marks))
		}
	}
}

// A list shows a lease whole, with the longest note and marks of as many owners as there are.
func TestHeadHasTheNote(t *testing.T) {
	s := State{Token: MaxToken, LeaseID: NewLeaseID(), Owner: strings.Repeat("o", 128), RequestID: strings.Repeat("r", MaxRequestID), Life: 1, TTLMS: term, Status: Active, ExpiresMS: t0, Note: strings.Repeat("k", MaxNote)}
	for n := range MaxMarks {
		far := receipt.Stamp(1<<58) * receipt.Stamp(n%2)
		s.Marks = append(s.Marks, Mark{Owner: math.MaxUint32, Acquire: far, Change: 1<<58 - far})
	}
	if s.TermMS, s.AcquiredMS = s.TTLMS, t0-term; written(s, false).Note != s.Note {
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
	if head.Receipts, head.Marks = read.Receipts, read.Marks; err != nil || !reflect.DeepEqual(head, read) {
		panic(fmt.Sprintf("the head of %+v is %+v, %v", read, head, err))
	}
	return read
}

// TestManyOwners: the owners of a busy key share a mark at last, and none of their requests
// is carried out again. The clock of one is far behind, which is no fault while it has a
// mark of its own.
func TestManyOwners(t *testing.T) {
	state, now, moved := State{}, t0, apart{}
	var sent []Request
	step := func(r Request) error {
		next, _, err := moved.apply(at(state, now), r)
		state = written(next, false)
		return err
	}
	use := func(owner string, madeMS int64) {
		t.Helper()
		for _, op := range []Op{Acquire, Renew, Release} {
			r := ask(op, owner, timedID(madeMS, len(sent)))
			if err := step(r); err != nil {
				t.Fatalf("%+v after %d requests: %v", r, len(sent), err)
			}
			sent = append(sent, r)
		}
	}
	const behind = 5000
	for n := range 100 * MaxMarks {
		now += 10
		use(fmt.Sprint("owner-", n%(2*MaxMarks)), now)
		if n%10 == 0 {
			use("behind", now-behind)
		}
	}
	for _, r := range sent {
		if _, l, err := moved.apply(at(state, now), r); err == nil && !l.Repeated {
			t.Fatalf("%+v is carried out again", r)
		}
	}
	if size := len(state.value(false)); len(state.Marks) != MaxMarks || len(state.Receipts) >= 2*MaxReceipts || size > 3500 {
		t.Errorf("the state has %d marks, %d receipts and %d bytes", len(state.Marks), len(state.Receipts), size)
	}
}

// timedID is a request ID that was made at that time, a UUID of version 7.
func timedID(ms int64, serial int) string {
	return fmt.Sprintf("%08x-%04x-7000-8000-%012x", ms>>16, ms&0xffff, serial)
}

// A lock takes about a hundred bytes, with the request ID of a daemon or of a client.
func TestSizeOfRecord(t *testing.T) {
	r := ask(Acquire, "host-0123+89abcdef/1000", "0123456789ab7def8123456789abcdef")
	s, _, _ := Apply(at(State{Life: 1, Token: t0 * 1000}, t0), r)
	if n := len(s.value(true)); n > 100 {
		t.Errorf("a lock takes %d bytes", n)
	}
	before := len(s.value(false))
	if s, _, _ = Apply(at(s, t0), ask(Renew, r.Owner, "0193456789ac7ef0823456789abcdef0")); len(s.value(false)) > before+30 {
		t.Errorf("a receipt takes %d bytes", len(s.value(false))-before)
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
