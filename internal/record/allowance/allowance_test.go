package allowance

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
)

// bench is a store with quotas in which time passes by hand.
type bench struct {
	*testing.T
	*Store
	now time.Duration
}

func newBench(t *testing.T, limits Limits) *bench {
	b := &bench{T: t}
	start := time.Now().UnixMilli()
	b.Store = New(memory.New(func() int64 { return start + b.now.Milliseconds() }), limits, func() time.Duration { return b.now })
	return b
}

// put writes a record for the payer, "" for none.
func (b *bench) put(payer, key string, length int, term time.Duration) error {
	ctx := b.Context()
	if payer != "" {
		ctx = Pay(ctx, payer)
	}
	_, err := b.Change(ctx, record.Ask{Keys: []string{key}}, func(record.View) ([]record.Write, error) {
		return []record.Write{{Key: key, Value: make([]byte, length), TermMS: term.Milliseconds()}}, nil
	})
	return err
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// full checks that the error names the quota, its value and the payer.
func (b *bench) full(err error, want record.FullError) {
	b.Helper()
	var got *record.FullError
	if !errors.As(err, &got) || *got != want || !strings.Contains(err.Error(), want.Quota) || !strings.Contains(err.Error(), want.Payer) ||
		!strings.Contains(err.Error(), fmt.Sprint(want.Limit)) {
		b.Fatalf("%v instead of %v", err, &want)
	}
}

// One payer meets its quota of keys: others do not, what exists can be written, and a key
// that has ended gives its room back.
func TestKeys(t *testing.T) {
	b := newBench(t, Limits{Keys: 3})
	for i := range 3 {
		b.must(b.put("user 1", fmt.Sprint("k", i), 10, time.Minute))
	}
	want := record.FullError{Quota: "quota_keys", Limit: 3, Payer: "user 1", Unit: "keys"}
	b.full(b.put("user 1", "k3", 10, time.Minute), want)
	b.must(b.put("user 2", "k3", 10, 0))
	b.must(b.put("", "k4", 10, 0))
	b.must(b.put("user 1", "k0", 8000, time.Minute)) // with many receipts
	b.now += 30 * time.Second
	b.must(b.put("user 1", "k0", 10, time.Minute)) // renewed
	b.now += 32 * time.Second
	b.must(b.put("user 1", "k5", 10, 0))
	b.must(b.put("user 1", "k6", 10, 0))
	b.full(b.put("user 1", "k7", 10, 0), want)
	b.now += time.Hour // of the three, two never end
	b.must(b.put("user 1", "k7", 10, time.Minute))
	b.full(b.put("user 1", "k8", 10, 0), want)
	if got := *b.payers["user 1"]; got.keys != 3 {
		t.Errorf("the ledger has %+v", got)
	}
}

// A payer meets its quota of bytes by new keys, and by large values that grow.
func TestBytes(t *testing.T) {
	b := newBench(t, Limits{Bytes: 100_000})
	want := record.FullError{Quota: "quota_disk", Limit: 100_000, Payer: "user 1", Unit: "bytes"}
	b.must(b.put("user 1", "a", 60_000, 0))
	b.full(b.put("user 1", "b", 60_000, 0), want)
	b.must(b.put("user 1", "b", 10, 0))
	b.full(b.put("user 1", "b", 60_000, 0), want)
	b.must(b.put("user 2", "b", 60_000, 0))
	b.must(b.put("user 2", "rest", 39_000, 0))
	b.must(b.put("user 2", "b", 61_000, 0)) // a little more
	b.must(b.put("user 1", "a", 1000, 0))   // gives room back
	b.must(b.put("user 1", "c", 60_000, 0))
	b.full(b.put("user 1", "d", 60_000, 0), want)
}

// All payers together have a limit, too, where the store does not say how much it may take.
// What they give back is free for others.
func TestAllTogether(t *testing.T) {
	b := newBench(t, Limits{Keys: 3, Bytes: 100_000})
	keys := record.FullError{Quota: "quota_keys", Limit: 3 * payerShare, Payer: everybody, Unit: "keys"}
	for i := range 3 * payerShare {
		b.must(b.put(fmt.Sprint("user ", i/2), fmt.Sprint("k", i), 10, time.Minute))
	}
	b.full(b.put("another", "k", 10, 0), keys)
	b.must(b.put("user 0", "k0", 8000, time.Minute)) // exists
	b.now += time.Hour
	for i := range payerShare {
		b.must(b.put(fmt.Sprint("user ", i), fmt.Sprint("large ", i), 99_000, 0))
	}
	b.must(b.put("another", "small", 2000, 0))
	b.full(b.put("yet another", "k", 7000, 0), record.FullError{Quota: "quota_disk", Limit: 100_000 * payerShare, Payer: everybody, Unit: "bytes"})
	b.SetLimits(Limits{Keys: 6, Bytes: 200_000})
	b.must(b.put("yet another", "k", 7000, 0))
}

// Few payers fill the room of all, and the others still get a part of their own.
func TestFairPart(t *testing.T) {
	const small = 64 / fairShare
	for name, test := range map[string]struct {
		limits       Limits
		each, length int // of those who fill the room
		part         int // keys of 1000 bytes, of another
		quota, unit  string
		all          int64
	}{
		"keys":  {Limits{Keys: 64}, 64, 10, small, "quota_keys", "keys", 64 * payerShare},
		"bytes": {Limits{Bytes: 64 << 10}, 1, 64<<10 - 300, 3, "quota_disk", "bytes", 64 << 10 * payerShare},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, test.limits)
			for i := range payerShare * test.each {
				b.must(b.put(fmt.Sprint("user ", i%payerShare), fmt.Sprint("k", i), test.length, 0))
			}
			for i := range test.part {
				b.must(b.put("another", fmt.Sprint("small ", i), 1000, 0))
			}
			want := record.FullError{Quota: test.quota, Limit: test.all, Payer: everybody, Unit: test.unit}
			b.full(b.put("another", "one more", 1000, 0), want)
			b.must(b.put("yet another", "k", 1000, 0))
		})
	}
}

// sized says how much it takes, and runs each rule twice, as stores with other processes do.
type sized struct {
	record.Store
	size, max int64
	err       error // of each change
}

func (s *sized) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	atMS, err := s.Store.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		v.Size, v.MaxSize = s.size, s.max
		if _, err := rule(v); err != nil {
			return nil, err
		}
		return rule(v)
	})
	if s.err != nil {
		err = s.err
	}
	return atMS, err
}

// A store that is full takes no new keys, and one payer gets a part of it.
func TestSizeOfTheStore(t *testing.T) {
	b := newBench(t, Limits{})
	s := &sized{Store: b.Store.Store, max: 1 << 20}
	b.Store.Store = s
	b.must(b.put("user 1", "a", 200_000, 0))
	b.full(b.put("user 1", "b", 200_000, 0), record.FullError{Quota: "quota_disk", Limit: 1 << 18, Payer: "user 1", Unit: "bytes"})
	s.size = s.max
	b.full(b.put("user 2", "b", 10, 0), record.FullError{Quota: "the disk", Limit: 1 << 20, Payer: "the store", Unit: "bytes"})
	s.max, s.size = 1<<18, 1<<18 // as when there is no room on the disk
	b.full(b.put("user 1", "b", 10, 0), record.FullError{Quota: "the disk", Limit: 1 << 18, Payer: "the store", Unit: "bytes"})
	s.max = 1 << 20
	s.size = s.max
	b.must(b.put("user 2", "a", 10, 0))
	b.must(b.put("", "b", 10, 0))
	s.size--
	b.must(b.put("user 2", "c", 10, 0))
}

// What was refused or not carried out costs nothing, however often the rule ran; what may
// have been carried out does.
func TestUnknownOutcomes(t *testing.T) {
	b := newBench(t, Limits{Keys: 1})
	s := &sized{Store: b.Store.Store}
	b.Store.Store = s
	for err, keys := range map[error]int64{record.ErrBusy: 0, record.ErrInvalid: 0, record.ErrTerm: 0, errors.New("no answer"): 1} {
		for i, term := range []time.Duration{0, time.Minute} {
			payer := fmt.Sprint(err, i)
			s.err = err
			if got := b.put(payer, payer, 10, term); !errors.Is(got, err) {
				t.Fatal(got)
			}
			s.err = nil
			if got := b.payers[payer]; got.keys != keys || (got.bytes != 0) != (keys != 0) {
				t.Errorf("%v: the ledger has %+v", err, *got)
			}
		}
	}
	failed := errors.New("the rule's own")
	if _, err := b.Change(Pay(t.Context(), "user 1"), record.Ask{}, func(record.View) ([]record.Write, error) { return nil, failed }); err != failed {
		t.Errorf("%v instead of the rule's error", err)
	}
}

// A new record of unknown outcome counts once, however often it is tried, and not for ever;
// it stays for good when it is written.
func TestUnknownOutcomesOfOneKey(t *testing.T) {
	b := newBench(t, Limits{Keys: 3})
	s := &sized{Store: b.Store.Store}
	inner := s.Store
	b.Store.Store = s
	for i := range 10 {
		s.Store, s.err = memory.New(nil), fmt.Errorf("no answer to %d", i) // nothing is kept
		if err := b.put("user 1", "a", 10, 0); err != s.err {
			t.Fatal(err)
		}
		_ = b.put("user 1", "b", 10, 0)
	}
	keys := func(want int64) {
		t.Helper()
		if got := *b.payers["user 1"]; got.keys != want {
			t.Errorf("the ledger has %+v", got)
		}
	}
	keys(2)
	s.Store, s.err = inner, nil
	b.must(b.put("user 1", "a", 10, 0))
	keys(2)
	b.now += 2 * time.Hour
	b.must(b.put("user 1", "a", 10, 0))
	keys(1)
}

// A rule that refuses when it runs again costs nothing.
func TestRuleThatRefusesLater(t *testing.T) {
	b := newBench(t, Limits{Keys: 3})
	b.Store.Store = &sized{Store: b.Store.Store}
	failed, runs := errors.New("the rule's own"), 0
	if _, err := b.Change(Pay(t.Context(), "user 1"), record.Ask{Keys: []string{"a"}}, func(record.View) ([]record.Write, error) {
		if runs++; runs == 2 {
			return nil, failed
		}
		return []record.Write{{Key: "a", Value: []byte("1")}}, nil
	}); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	if got := *b.payers["user 1"]; got != (payer{}) {
		t.Errorf("the ledger has %+v", got)
	}
}

// When most of many records have ended, the map of those that end is exchanged for a small one.
func TestRoomOfEndedRecords(t *testing.T) {
	b := newBench(t, Limits{Keys: 1000})
	for i := range 100 {
		b.must(b.put("user 1", fmt.Sprint("k", i), 10, time.Minute))
	}
	large := reflect.ValueOf(b.dated).Pointer()
	b.now += time.Hour
	for range 100 {
		b.must(b.put("user 1", "k0", 10, time.Hour))
	}
	if reflect.ValueOf(b.dated).Pointer() == large || len(b.dated) != 1 || b.payers["user 1"].keys != 1 {
		t.Errorf("%d records are in a map for %d", len(b.dated), b.most)
	}
}
