package sequence_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
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
	ids := []string{sequence.NewRequestID(), uuid, strings.ToUpper(uuid), strings.ReplaceAll(uuid, "-", ""), "t." + uuid}
	for n := 1; len(ids) < sequence.MaxReceipts; n++ {
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

// Where the answer to a declaration is lost, and values are taken before it is looked at again, it is
// not declared a second time.
func TestLostAnswerOfADeclaration(t *testing.T) {
	for name, c := range map[string]struct {
		before, after error
		taken         bool  // two values, before the second look
		last          int64 // after it
		fails         bool
	}{
		"carried out":               {nil, record.ErrOutrun, false, 41, false},
		"carried out, and used":     {nil, record.ErrOutrun, true, 43, true},
		"not carried out":           {record.ErrOutrun, nil, false, 41, false},
		"not carried out, and used": {record.ErrOutrun, nil, true, 4, true},
	} {
		for _, ttl := range []time.Duration{0, time.Hour} {
			records := &undone{Store: memory.New(nil)}
			s, r := sequence.OnRecords(records), plainRequest("")
			r.Options.TTL = ttl
			if _, err := s.Next(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			records.before, records.after = c.before, c.after
			if c.taken {
				records.then = func() {
					if _, err := s.Next(t.Context(), r); err != nil {
						t.Error(err)
					}
				}
			}
			err := s.Declare(t.Context(), sequence.Declaration{Tenant: r.Tenant, Key: r.Key, Options: r.Options, Last: 41})
			if (err != nil) != c.fails || c.fails && (!errors.Is(err, record.ErrOutrun) || !strings.Contains(err.Error(), "used meanwhile")) {
				t.Errorf("%s, TTL %v: the error is %v", name, ttl, err)
			}
			if got, err := s.Next(t.Context(), r); err != nil || got.First != c.last+1 {
				t.Errorf("%s, TTL %v: the next values are %v (%v), want %d first", name, ttl, got, err, c.last+1)
			}
		}
	}
}

// undone fails one change after its rule has run, before or after it is carried out, and calls then.
type undone struct {
	record.Store
	before, after error
	then          func()
}

func (u *undone) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	before, after, then := u.before, u.after, u.then
	u.before, u.after, u.then = nil, nil, nil
	at, err := u.Store.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		writes, err := rule(v)
		if before != nil {
			err = before
		}
		return writes, err
	})
	if err == nil {
		err = after
	}
	if then != nil {
		then()
	}
	return at, err
}

// An error that nothing was sent, from a later try, says nothing of the first one.
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
		// Seed 003-7.2-9.
		if !errors.Is(err, away) || errors.Is(err, sequence.ErrReset) != want || sequence.IsAnswer(err) {
			t.Errorf("call %d: the error is %v, want ErrReset: %v", call, err, want)
		}
	}
}

// A record that is no state is refused by name, and left as it is.
func TestDamagedRecord(t *testing.T) {
	for _, text := range []string{
		"", "\x00", "\xff\x01", "{}", "\x01\x01", "\x01\x01\x00\x01\x00\x00", "\x00\x01\x02id", "\x00\x01\x02id\x01", "\x00\x01\x02id\x01\x00",
		"\x00\x01\x02id\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01", "\x00\x01\x11id", "\x00\x01\x02id\x01\x01", "\x10\x01\x05life", "step=1",
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

// A call with a receipt that the store has lost is a new one after the declaration, with new
// values.
func TestDeclaredAfterALoss(t *testing.T) {
	records := &doubtful{Store: memory.New(nil), life: "first"}
	s := sequence.OnRecords(records)
	r := plainRequest("lost")
	if got, err := s.Next(t.Context(), r); err != nil || got.First != 1 {
		t.Fatalf("%v (%v)", got, err)
	}
	records.Store, records.life, records.fromMS = memory.New(nil), "second", 1
	must.Succeed(t, s.Declare(t.Context(), sequence.Declaration{Tenant: "t", Key: "k", Options: r.Options, Last: 4}))
	for range 2 {
		if got, err := s.Next(t.Context(), r); err != nil || got.First != 5 {
			t.Errorf("%v (%v), want two values from 5", got, err)
		}
	}
}

// The record of a key has a limit, under any calls: they are remembered in the order in which
// they came, over the maximum and into the largest values.
func TestSizeOfRecord(t *testing.T) {
	const key = "seq/t/k"
	for name, test := range map[string]struct {
		start, max, step int64
		count, most      int
	}{
		"usual":  {1, 0, 1, 1, 2500},
		"resets": {1, 7, 1, 3, 2500},
		"large":  {1 << 61, 0, 1 << 40, sequence.MaxCount, 3700},
		"apart":  {0, math.MaxInt64, math.MaxInt64, 1, 3700},
	} {
		records := memory.New(nil)
		s := sequence.OnRecords(records)
		o := sequence.DefaultOptions()
		o.Start, o.StartSet, o.Max, o.Step = test.start, true, test.max, test.step
		var asked []sequence.Request
		got := map[string]sequence.Range{}
		for range 3 * sequence.MaxReceipts / 2 {
			r := sequence.Request{Tenant: "t", Key: "k", Count: test.count, RequestID: sequence.NewRequestID(), Options: o}
			values, err := s.Next(t.Context(), r)
			if errors.As(err, new(*sequence.ExhaustedError)) {
				break
			}
			must.Succeed(t, err)
			asked, got[r.RequestID] = append(asked, r), values
		}
		v, err := records.Read(t.Context(), record.Ask{Keys: []string{key}})
		must.Succeed(t, err)
		if n := len(v.Records[key].Value); n > test.most { // seed 003-8.5-3
			t.Errorf("%s: %d calls take %d bytes", name, len(asked), n)
		}
		for _, r := range asked[max(0, len(asked)-sequence.MaxReceipts):] {
			if values, err := s.Next(t.Context(), r); err != nil || values != got[r.RequestID] {
				t.Fatalf("%s: again, %v is %v (%v)", name, got[r.RequestID], values, err)
			}
		}
	}
}
