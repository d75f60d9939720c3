package sequence_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func with(change func(*sequence.Options)) sequence.Options {
	o := sequence.DefaultOptions()
	change(&o)
	return o
}

// TestRules is what random calls (sequencetest) do not meet: the limits of int64, of
// receipts and of what can be asked for.
func TestRules(t *testing.T) {
	s := sequence.OnRecords(memory.New(nil))
	type ask = sequence.Request
	next := func(r ask) ([]int64, error) {
		if r.Tenant == "" {
			r.Tenant = "t"
		}
		got, err := s.Next(t.Context(), r)
		return got.Values(), err
	}
	ten := with(func(o *sequence.Options) { o.Max = 10 })
	last := with(func(o *sequence.Options) { o.Start, o.StartSet = math.MaxInt64-1, true })
	huge := with(func(o *sequence.Options) { o.Step = math.MaxInt64 })
	again := with(func(o *sequence.Options) { o.Step, o.Max = math.MaxInt64/2, math.MaxInt64 })
	two := with(func(o *sequence.Options) { o.Max = 2 })
	orders := with(func(o *sequence.Options) { o.Step, o.Max = 1000, 999_999 })
	for i, c := range []struct {
		ask   ask
		want  []int64
		words string // of the error
	}{
		// Seeds 003-2-3, 003-5-10, 003-8.1-3 and 003-8.1-4: a maximum, batches, and the key starts over.
		{ask{Key: "ten", Count: 8, Options: ten}, []int64{1, 2, 3, 4, 5, 6, 7, 8}, ""},
		{ask{Key: "ten", Count: 3, Options: ten}, []int64{1, 2, 3}, ""}, // what does not fit begins the next run as a whole
		{ask{Key: "ten", Count: 6, Options: ten}, []int64{4, 5, 6, 7, 8, 9}, ""},
		{ask{Key: "ten", Count: 5, AtLeast: 1, Options: ten}, []int64{10}, ""},
		{ask{Key: "ten", Count: 5, AtLeast: 6, Options: ten}, nil, "at least"},
		{ask{Key: "ten", Count: 11, Options: ten}, nil, "do not fit"},
		{ask{Key: "daily", Count: 1000, Options: orders}, nil, "do not fit"},    // seed 003-8.2-3: the last one would be 1,000,000
		{ask{Key: "daily", Count: 2, Options: orders}, []int64{1000, 2000}, ""}, // seed 003-8.3-2: steps of 1,000
		{ask{Key: "daily", Count: 1, Options: orders}, []int64{3000}, ""},       // seed 003-8.3-2: the batch has added two of them
		{ask{Key: "all", Count: 20, AtLeast: 1, Options: ten}, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, ""},

		{ask{Key: "last", Count: 2, Options: last}, []int64{math.MaxInt64 - 1, math.MaxInt64}, ""},
		{ask{Key: "last", Count: 1, Options: last}, nil, "has 0 values left"},
		{ask{Key: "last", Count: 3, Options: last}, nil, "do not fit"},
		{ask{Key: "huge", Count: 1, Options: huge}, []int64{math.MaxInt64}, ""},
		{ask{Key: "huge", Count: 1, Options: huge}, nil, "has 0 values left"},
		{ask{Key: "huge", Count: 2, Options: huge}, nil, "do not fit"},
		{ask{Key: "again", Count: 2, Options: again}, []int64{math.MaxInt64 / 2, math.MaxInt64 - 1}, ""},
		{ask{Key: "again", Count: 1, Options: again}, []int64{math.MaxInt64 / 2}, ""},

		// A call that is repeated after the key started over gets its old values.
		{ask{Key: "two", Count: 2, RequestID: "x", Options: two}, []int64{1, 2}, ""},
		{ask{Key: "two", Count: 1, RequestID: "xx", Options: two}, []int64{1}, ""},
		{ask{Key: "two", Count: 2, RequestID: "x", Options: two}, []int64{1, 2}, ""},
		{ask{Key: "two", Count: 5, AtLeast: 2, RequestID: "x", Options: two}, []int64{1, 2}, ""},
		{ask{Key: "two", Count: 1, RequestID: "x", Options: two}, nil, "another number"},
		{ask{Key: "another", Count: 1, RequestID: "x", Options: two}, []int64{1}, ""},

		{ask{Key: "k", Count: 0, Options: ten}, nil, "count"},
		{ask{Key: "k", Count: sequence.MaxCount + 1, Options: sequence.DefaultOptions()}, nil, "count"},
		{ask{Key: "k", Count: 1, Options: ten, RequestID: "a b"}, nil, "request ID"},
		{ask{Key: "k", Count: 1, Options: ten, RequestID: strings.Repeat("i", sequence.MaxRequestID+1)}, nil, "request ID"},
		{ask{Key: "", Count: 1, Options: ten}, nil, "0 bytes"},
		{ask{Key: strings.Repeat("k", sequence.MaxKey+1), Count: 1, Options: ten}, nil, "513 bytes"},
		{ask{Key: "a\nb", Count: 1, Options: ten}, nil, "control character U+000A at byte 1"},
		{ask{Key: "\xff", Count: 1, Options: ten}, nil, "not UTF-8"},
		{ask{Tenant: "a/b", Key: "k", Count: 1, Options: ten}, nil, "tenant"},
		{ask{Tenant: strings.Repeat("t", 65), Key: "k", Count: 1, Options: ten}, nil, "tenant"},
	} {
		got, err := next(c.ask)
		if c.words == "" && (err != nil || !slices.Equal(got, c.want)) ||
			c.words != "" && (!sequence.IsAnswer(err) || err == nil || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%d: %+v: %v (%v), want %v %s", i, c.ask, got, err, c.want, c.words)
		}
	}
	// A key remembers so many calls; an older one is new.
	named := func(id int, want int64) {
		t.Helper()
		if got, err := next(ask{Key: "named", Count: 1, RequestID: fmt.Sprint(id), Options: sequence.DefaultOptions()}); err != nil || got[0] != want {
			t.Errorf("call %d: %v (%v), want %d", id, got, err, want)
		}
	}
	for i := range sequence.MaxReceipts {
		named(i, int64(i+1))
	}
	named(0, 1)
	named(sequence.MaxReceipts, sequence.MaxReceipts+1)
	named(1, 2)
	named(0, sequence.MaxReceipts+2)
	named(0, sequence.MaxReceipts+2)
}

func TestOptions(t *testing.T) {
	s := sequence.OnRecords(memory.New(nil))
	next := func(o sequence.Options) (sequence.Range, error) {
		return s.Next(t.Context(), sequence.Request{Tenant: "t", Key: "k", Count: 1, Options: o})
	}
	if _, err := next(sequence.DefaultOptions()); err != nil {
		t.Fatal(err)
	}
	for words, o := range map[string]sequence.Options{
		"step=2":        with(func(o *sequence.Options) { o.Step, o.Start, o.StartSet = 2, 1, true }),
		"start=0":       with(func(o *sequence.Options) { o.StartSet = true }),
		"max_value=9":   with(func(o *sequence.Options) { o.Max = 9 }),
		"on_max=error":  with(func(o *sequence.Options) { o.OnMax = sequence.Fail }),
		"ttl_ms=60000":  with(func(o *sequence.Options) { o.TTL = time.Minute }),
		"step: 0":       with(func(o *sequence.Options) { o.Step = 0 }),
		"start: -1":     with(func(o *sequence.Options) { o.Start, o.StartSet = -1, true }),
		"max_value: -1": with(func(o *sequence.Options) { o.Max = -1 }),
		"max_value: 5":  with(func(o *sequence.Options) { o.Max, o.Step = 5, 6 }),
		"on_max: \"\"":  with(func(o *sequence.Options) { o.OnMax = "" }),
		"ttl: 999ms":    with(func(o *sequence.Options) { o.TTL = 999 * time.Millisecond }),
		"ttl: 1.0001s":  with(func(o *sequence.Options) { o.TTL = 1000100 * time.Microsecond }),
		"ttl: 8785h":    with(func(o *sequence.Options) { o.TTL = 366*24*time.Hour + time.Hour }),
		"block: -1":     with(func(o *sequence.Options) { o.Block = -1 }),
		"block: 65537":  with(func(o *sequence.Options) { o.Block = 65_537 }),
		"block: 10":     with(func(o *sequence.Options) { o.Block, o.Max = 10, 9 }),
	} {
		if got, err := next(o); !errors.Is(err, sequence.ErrInvalid) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v (%v)", words, got, err)
		}
	}
	// The same in other words, and with a Block, which is a host's own matter.
	// Seed 003-5-9.
	if got, err := next(with(func(o *sequence.Options) { o.Start, o.StartSet, o.Block = 1, true, 10 })); err != nil || got.First != 2 {
		t.Errorf("%v (%v), want 2", got, err)
	}
}

// A key that is declared goes on as the operator says. It remembers its calls if it counts as before.
func TestDeclared(t *testing.T) {
	s := sequence.OnRecords(memory.New(nil))
	declare := func(key string, last int64, o sequence.Options) error {
		return s.Declare(t.Context(), sequence.Declaration{Tenant: "t", Key: key, Options: o, Last: last})
	}
	take := func(key, requestID string, o sequence.Options, want int64, words string) {
		t.Helper()
		got, err := s.Next(t.Context(), sequence.Request{Tenant: "t", Key: key, Count: 1, RequestID: requestID, Options: o})
		if want != 0 && (err != nil || got.First != want) || want == 0 && (err == nil || !strings.Contains(err.Error(), words)) {
			t.Errorf("%s: %v (%v), want %d %s", key, got, err, want, words)
		}
	}
	plain, tens := sequence.DefaultOptions(), with(func(o *sequence.Options) { o.Step = 10 })
	for key, before := range map[string]int64{"new": 0, "same": 1, "other": 1} {
		if before > 0 {
			take(key, "before", plain, before, "")
		}
		if key != "other" {
			must.Succeed(t, declare(key, 41, plain))
		} else {
			must.Succeed(t, declare(key, 41, tens))
		}
	}
	take("new", "", plain, 42, "")
	take("same", "before", plain, 1, "")
	take("same", "", plain, 42, "")
	take("other", "before", plain, 0, "step=10")
	take("other", "before", tens, 51, "")
	for last, o := range map[int64]sequence.Options{
		-1: plain, 11: with(func(o *sequence.Options) { o.Max = 10 }), 98: with(func(o *sequence.Options) { o.Start, o.StartSet = 100, true }),
	} {
		if err := declare("bad", last, o); !errors.Is(err, sequence.ErrInvalid) {
			t.Errorf("last value %d: the error is %v, want ErrInvalid", last, err)
		}
	}
}
