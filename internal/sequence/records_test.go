package sequence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/bounds"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/record/receipt"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// failing fails changes, before or after they are carried out.
type failing struct {
	record.Store
	before, after error // of the next change
}

func (f *failing) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	before, after := f.before, f.after
	f.before, f.after = nil, nil
	if before != nil {
		return 0, before
	}
	at, err := f.Store.Change(ctx, ask, rule)
	if err == nil {
		err = after
	}
	return at, err
}

func plainRequest(requestID string) sequence.Request {
	return sequence.Request{Tenant: "t", Key: "k", Count: 2, RequestID: requestID, Options: sequence.DefaultOptions()}
}

// A request ID of any form and length is remembered as it is: no other one is taken for it,
// and the key can be read afterwards.
func TestRequestIDsAreRemembered(t *testing.T) {
	uuid := "0190a0b0-c0d0-4abc-8def-0123456789ab"
	ids := []string{sequence.NewRequestID(), uuid, strings.ToUpper(uuid), strings.ReplaceAll(uuid, "-", ""), "t." + uuid, strings.Repeat("-", len(uuid))}
	for n := 1; n <= sequence.MaxRequestID; n++ {
		ids = append(ids, strings.Repeat("z", n))
	}
	s := sequence.OnRecords(memory.New(nil))
	for range 2 {
		for i, id := range ids {
			if got, err := s.Next(t.Context(), plainRequest(id)); err != nil || got.First != int64(2*i+1) {
				t.Errorf("%q: %+v (%v), want %d first", id, got, err, 2*i+1)
			}
		}
	}
}

// Where a store cannot tell whether a call was carried out, its receipt can. Without
// one the call does not succeed: its values may be taken.
func TestLostAnswerLeavesNoGap(t *testing.T) {
	for name, c := range map[string]struct {
		requestID     string
		before, after error
		want          int64 // 0: the call fails
		next          int64
	}{
		"named, carried out":     {"id", nil, record.ErrOutrun, 1, 3},
		"named, not carried out": {"id", record.ErrOutrun, nil, 1, 3},
		"carried out":            {"", nil, record.ErrOutrun, 0, 3},
		"not carried out":        {"", record.ErrOutrun, nil, 0, 1},
		"another error":          {"id", nil, record.ErrBusy, 0, 3},
	} {
		records := &failing{memory.New(nil), c.before, c.after}
		s := sequence.OnRecords(records)
		got, err := s.Next(t.Context(), plainRequest(c.requestID))
		if failed := err != nil && !sequence.IsAnswer(err); failed != (c.want == 0) || got.First != c.want {
			t.Errorf("%s: %v (%v), want %d", name, got, err, c.want)
		}
		if got, err := s.Next(t.Context(), plainRequest("")); err != nil || got.First != c.next {
			t.Errorf("%s: then %v (%v), want %d", name, got, err, c.next)
		}
	}
}

// An error of a later try that nothing was sent does not say that of the first one.
func TestLostAnswerStaysUnknown(t *testing.T) {
	notSent := connurl.NotSent(errors.New("there is no connection"))
	tries := []error{record.ErrOutrun, record.ErrOutrun, notSent}
	err := record.Settle(func() error {
		err := tries[0]
		tries = tries[1:]
		return err
	}, sequence.IsAnswer)
	if !errors.Is(err, record.ErrOutrun) || errors.Is(err, connurl.ErrNotSent) || !strings.Contains(err.Error(), notSent.Error()) {
		t.Errorf("the error is %v", err)
	}
	if err := record.Settle(func() error { return notSent }, sequence.IsAnswer); err != notSent {
		t.Errorf("without a lost answer the error is %v", err)
	}
}

// Where the store fails in a step in which the key starts over, the error says so; no other
// error does.
func TestResetThatFails(t *testing.T) {
	records := &failing{Store: memory.New(nil)}
	s := sequence.OnRecords(records)
	r := plainRequest("")
	r.Options.Max = 4 // two calls of two values
	away := errors.New("the store is away")
	for call, want := range []bool{false, false, true, false} {
		records.after = away
		_, err := s.Next(t.Context(), r)
		if !errors.Is(err, away) || errors.Is(err, sequence.ErrReset) != want || sequence.IsAnswer(err) {
			t.Errorf("call %d: the error is %v, want ErrReset: %v", call, err, want)
		}
	}
}

// A record that is no state is refused by name, and left as it is.
func TestDamagedRecord(t *testing.T) {
	for _, text := range []string{
		"", "\x00", "\xff\x01", "{}", "\x01\x01", "\x01\x01\x00\x01\x00\x00", "\x00\x01\x02id", "\x00\x01\x02id\x01", "\x00\x01\x02id\x01\x00",
		"\x00\x01\x02id\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01", "\x00\x01\x82id\x01\x01\x00", "\x10\x01\x05life", "step=1",
	} {
		records := memory.New(nil)
		const key = "seq/t/k"
		put := func(record.View) ([]record.Write, error) {
			return []record.Write{{Key: key, Value: []byte(text)}}, nil
		}
		if _, err := records.Change(t.Context(), record.Ask{Keys: []string{key}}, put); err != nil {
			t.Fatal(err)
		}
		got, err := sequence.OnRecords(records).Next(t.Context(), plainRequest(""))
		if err == nil || sequence.IsAnswer(err) || !strings.Contains(err.Error(), `sequence "k": the recorded `) {
			t.Errorf("of %q came %v (%v)", text, got, err)
		}
		if v, err := records.Read(t.Context(), record.Ask{Keys: []string{key}}); err != nil || string(v.Records[key].Value) != text {
			t.Errorf("%q was changed to %q (%v)", text, v.Records[key].Value, err)
		}
	}
}

// doubtful is a store in another life, that may have forgotten something.
type doubtful struct {
	record.Store
	life   string
	fromMS int64
}

func (d *doubtful) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	return d.Store.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		v.Life, v.Fence = d.life, record.Fence{Doubt: d.fromMS > 0, FromMS: d.fromMS, Reason: "a test"}
		return rule(v)
	})
}

// In a store that may have forgotten something, a key counts again once an operator has
// declared it, or once its TTL has passed since; also more than once.
func TestDoubt(t *testing.T) {
	clock := atomic.Int64{}
	clock.Store(1_800_000_000_000)
	records := &doubtful{Store: memory.New(clock.Load), life: "first"}
	s := sequence.OnRecords(records)
	r := plainRequest("")
	r.Options.TTL = time.Minute
	take := func(want int64) {
		t.Helper()
		got, err := s.Next(t.Context(), r)
		var fenced *sequence.FencedError
		if want == 0 && !errors.As(err, &fenced) || want != 0 && (err != nil || got.First != want) {
			t.Errorf("%v (%v), want %d", got, err, want)
		}
	}
	take(1)
	records.life, records.fromMS = "second", clock.Load()
	take(0)
	must.Succeed(t, s.Declare(t.Context(), sequence.Declaration{Tenant: "t", Key: "k", Options: r.Options, Last: 10}))
	take(11)
	clock.Add(60_000)
	take(1) // all of its run is known, and over
	take(3)
	records.life, records.fromMS = "third", clock.Load()
	take(0)
	clock.Add(59_999)
	take(0)
	clock.Add(1)
	take(1)
	take(3)
}

// A key without a TTL is never idle for long enough: after a store has forgotten something it
// counts on only once an operator has declared it.
func TestDoubtWithoutTTL(t *testing.T) {
	clock := atomic.Int64{}
	clock.Store(1_800_000_000_000)
	records := &doubtful{Store: memory.New(clock.Load), life: "first"}
	s := sequence.OnRecords(records)
	if got, err := s.Next(t.Context(), plainRequest("")); err != nil || got.First != 1 {
		t.Fatalf("%v (%v)", got, err)
	}
	records.life, records.fromMS = "second", clock.Load()
	for range 3 {
		var fenced *sequence.FencedError
		if got, err := s.Next(t.Context(), plainRequest("")); !errors.As(err, &fenced) || fenced.UntilMS != 0 {
			t.Errorf("%v (%v), want to be fenced without an end", got, err)
		}
		clock.Add((1000 * time.Hour).Milliseconds())
	}
}

// A declaration of a key that the store has forgotten refuses the calls that may be forgotten
// with it, also those of a host whose clock was ahead.
func TestADeclarationRefusesForgottenCalls(t *testing.T) {
	clock := atomic.Int64{}
	clock.Store(1_800_000_000_000)
	records := &doubtful{Store: memory.New(clock.Load), life: "first"}
	s := sequence.OnRecords(records)
	calls := []sequence.Request{plainRequest(madeAt(clock.Load(), 1)), plainRequest(madeAt(clock.Load()+30_000, 2))}
	for i, r := range calls {
		if got, err := s.Next(t.Context(), r); err != nil || got.First != int64(2*i+1) {
			t.Fatalf("%v (%v), want two values from %d", got, err, 2*i+1)
		}
	}
	records.Store, records.life, records.fromMS = memory.New(clock.Load), "second", clock.Load()
	clock.Add(60_000)
	must.Succeed(t, s.Declare(t.Context(), sequence.Declaration{Tenant: "t", Key: "k", Options: calls[0].Options, Last: 4}))
	for i, r := range calls {
		if got, err := s.Next(t.Context(), r); !errors.Is(err, sequence.ErrRequestReused) {
			t.Errorf("call %d, which had its values, has %v (%v)", i+1, got, err)
		}
	}
	clock.Add(1)
	if got, err := s.Next(t.Context(), plainRequest(madeAt(clock.Load(), 3))); err != nil || got.First != 5 {
		t.Errorf("a new call: %v (%v), want 5", got, err)
	}
}

// A call does not fail for want of room for receipts. They are forgotten, and repetitions
// refused.
func TestNoRoomForWindows(t *testing.T) {
	s := sequence.OnRecords(bounds.New(memory.New(nil), bounds.Limits{Keys: 1}, func() time.Duration { return 0 }))
	ctx := bounds.Pay(t.Context(), "alice")
	first := plainRequest(sequence.NewRequestID())
	for n := range int64(5 * sequence.MaxReceipts) {
		r := plainRequest(sequence.NewRequestID())
		if n == 0 {
			r = first
		}
		if got, err := s.Next(ctx, r); err != nil || got.First != 2*n+1 {
			t.Fatalf("call %d: %v (%v)", n, got, err)
		}
	}
	if got, err := s.Next(ctx, first); !errors.Is(err, sequence.ErrRequestReused) {
		t.Errorf("the first call again: %v (%v)", got, err)
	}
}

// madeAt is a request ID that was made then, a UUID of version 7.
func madeAt(ms int64, serial int) string {
	return fmt.Sprintf("%08x-%04x-7000-8000-%012x", ms>>16, ms&0xffff, serial)
}

// Calls of a host whose clock is behind another's look into windows for their own receipts. The
// key's record does not grow meanwhile.
func TestReceiptsMoveBesideAHostThatIsAhead(t *testing.T) {
	clock := atomic.Int64{}
	clock.Store(1_800_000_000_000)
	records := memory.New(clock.Load)
	s := sequence.OnRecords(records)
	var ids []string
	call := func(id string) {
		t.Helper()
		ids = append(ids, id)
		if got, err := s.Next(t.Context(), plainRequest(id)); err != nil || got.First != int64(2*len(ids)-1) {
			t.Fatalf("call %d: %v (%v)", len(ids), got, err)
		}
	}
	for i := range 3 * sequence.MaxReceipts {
		call(madeAt(clock.Add(1)+receipt.Keep.Milliseconds()/2, i))
	}
	for i := range 1000 {
		call(madeAt(clock.Add(1), i))
	}
	v, err := records.Read(t.Context(), record.Ask{Keys: []string{"seq/t/k"}})
	must.Succeed(t, err)
	if n := len(v.Records["seq/t/k"].Value); n > 2000 {
		t.Errorf("the key's record has %d bytes", n)
	}
	for i, id := range ids {
		if got, err := s.Next(t.Context(), plainRequest(id)); err != nil || got.First != int64(2*i+1) {
			t.Fatalf("call %d again: %v (%v)", i, got, err)
		}
	}
}

// Windows of a key that counted in another way say nothing of how it counts now.
func TestWindowsOfAnEarlierCount(t *testing.T) {
	clock := atomic.Int64{}
	clock.Store(1_800_000_000_000)
	for name, ttl := range map[string]time.Duration{"declared": 0, "over": time.Second} {
		t.Run(name, func(t *testing.T) {
			s := sequence.OnRecords(memory.New(clock.Load))
			options := sequence.DefaultOptions()
			options.TTL = ttl
			calls := func() (first sequence.Request) {
				for i := range 5 * sequence.MaxReceipts {
					r := plainRequest(madeAt(clock.Add(1), i))
					r.Options = options
					if got, err := s.Next(t.Context(), r); err != nil || got.First%options.Step != 0 {
						t.Fatalf("call %d: %v (%v)", i, got, err)
					}
					if i == 0 {
						first = r
					}
				}
				return first
			}
			old := calls()
			if got, err := s.Next(t.Context(), old); err != nil || got.First != 1 {
				t.Fatalf("the first call again: %v (%v)", got, err)
			}
			options.Step = 10
			if ttl == 0 {
				must.Succeed(t, s.Declare(t.Context(), sequence.Declaration{Tenant: "t", Key: "k", Options: options, Last: 1000}))
			}
			clock.Add(ttl.Milliseconds())
			latest := calls()
			old.Options = options
			got, err := s.Next(t.Context(), old)
			if ttl == 0 && !errors.Is(err, sequence.ErrRequestReused) || ttl > 0 && (err != nil || got.First != 1610) {
				t.Errorf("the first call of the earlier count: %v (%v)", got, err)
			}
			if got, err := s.Next(t.Context(), latest); err != nil || got.First%10 != 0 || got.First > 1010 {
				t.Errorf("the first call of this count: %v (%v)", got, err)
			}
		})
	}
}

// A call from before a declaration is refused after it, also one whose ID is from a clock that
// was ahead of all others, and whose receipt is in a window.
func TestDeclaredAfterAHostThatWasAhead(t *testing.T) {
	clock := atomic.Int64{}
	clock.Store(1_800_000_000_000)
	s := sequence.OnRecords(memory.New(clock.Load))
	call := func(r sequence.Request) error {
		_, err := s.Next(t.Context(), r)
		return err
	}
	ahead := plainRequest(madeAt(clock.Load()+receipt.Keep.Milliseconds()/2, 0))
	must.Succeed(t, call(ahead))
	for i := range 5 * sequence.MaxReceipts {
		must.Succeed(t, call(plainRequest(madeAt(clock.Add(1), i))))
	}
	must.Succeed(t, s.Declare(t.Context(), sequence.Declaration{Tenant: "t", Key: "k", Options: ahead.Options, Last: 1000}))
	if err := call(ahead); !errors.Is(err, sequence.ErrRequestReused) {
		t.Errorf("the call from before the declaration: %v", err)
	}
}
