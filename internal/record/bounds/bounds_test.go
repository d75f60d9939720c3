package bounds

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// below is a store that tells what a test wants, runs each rule twice, as stores with other
// processes do, and fails as the test wants.
type below struct {
	record.Store
	keys, size int64 // 0: it does not say
	full       bool
	err        error // of each change
}

func (s *below) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	atMS, err := s.Store.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		v.Keys, v.Size, v.Full = s.keys, s.size, s.full
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

// rig is a store with limits in which time passes by hand.
type rig struct {
	*testing.T
	*Store
	below *below
	now   time.Duration
}

func newRig(t *testing.T, limits Limits) *rig {
	r := &rig{T: t}
	start := time.Now().UnixMilli()
	r.below = &below{Store: memory.New(func() int64 { return start + r.now.Milliseconds() })}
	r.Store = New(r.below, limits, func() time.Duration { return r.now })
	return r
}

// put writes a record for the payer, "" for none.
func (r *rig) put(payer, key string, length int, term time.Duration) error {
	ctx := r.Context()
	if payer != "" {
		ctx = Pay(ctx, payer)
	}
	_, err := r.Change(ctx, record.Ask{Keys: []string{key}}, func(record.View) ([]record.Write, error) {
		return []record.Write{{Key: key, Value: make([]byte, length), TermMS: term.Milliseconds()}}, nil
	})
	return err
}

func (r *rig) must(err error) {
	r.Helper()
	must.Succeed(r, err)
}

// full checks that the error is the limit, and says so.
func (r *rig) full(err error, want record.FullError) {
	r.Helper()
	var got *record.FullError
	if !errors.As(err, &got) || *got != want || !strings.Contains(err.Error(), want.Setting) || !strings.Contains(err.Error(), want.Payer) ||
		want.Limit > 0 && !strings.Contains(err.Error(), fmt.Sprint(want.Limit)) {
		r.Fatalf("%v instead of %v", err, &want)
	}
}

// counts checks what counts for a payer.
func (r *rig) counts(payer string, keys int64) {
	r.Helper()
	if got := r.payers[payer]; got == nil && keys != 0 || got != nil && (got.keys != keys || (got.bytes != 0) != (keys != 0)) {
		r.Errorf("for %s count %+v, want %d keys", payer, got, keys)
	}
}

// Refusals, by the limits, the store's counts, and a payer's records.
func TestLimits(t *testing.T) {
	const size = 10_000 // of each record, and somewhat more
	keys, disk, user := record.SettingKeys, record.SettingDisk, "user 1"
	for name, test := range map[string]struct {
		limits     Limits
		keys, size int64 // that the store says
		full       bool
		mine       int // keys of user 1
		others     int
		want       record.FullError
		free       bool
	}{
		"no limit":                           {mine: 9, free: true},
		"one less than a payer's keys":       {limits: Limits{Keys: 8}, mine: 5, free: true},
		"a payer's keys":                     {limits: Limits{Keys: 8}, mine: 6, want: record.FullError{Setting: keys, Limit: 6, Payer: user}},
		"one less than all keys":             {limits: Limits{Keys: 8}, mine: 4, others: 3, free: true},
		"all keys":                           {limits: Limits{Keys: 8}, mine: 4, others: 4, want: record.FullError{Setting: keys, Limit: 8}},
		"all keys, as the store says":        {limits: Limits{Keys: 8}, keys: 8, want: record.FullError{Setting: keys, Limit: 8}},
		"fewer, as the store says":           {limits: Limits{Keys: 8}, keys: 7, mine: 4, others: 4, free: true},
		"a payer's keys, few in the store":   {limits: Limits{Keys: 8}, keys: 1, mine: 6, want: record.FullError{Setting: keys, Limit: 6, Payer: user}},
		"some less than a payer's bytes":     {limits: Limits{Bytes: 8 * size}, mine: 4, free: true},
		"a payer's bytes":                    {limits: Limits{Bytes: 8 * size}, mine: 5, want: record.FullError{Setting: disk, Limit: 6 * size, Payer: user}},
		"some less than all bytes":           {limits: Limits{Bytes: 8 * size}, mine: 3, others: 3, free: true},
		"all bytes":                          {limits: Limits{Bytes: 8 * size}, mine: 3, others: 4, want: record.FullError{Setting: disk, Limit: 8 * size}},
		"all bytes, as the store says":       {limits: Limits{Bytes: 8 * size}, size: 8*size - 1, want: record.FullError{Setting: disk, Limit: 8 * size}},
		"fewer bytes, as the store says":     {limits: Limits{Bytes: 8 * size}, size: 1, mine: 4, others: 3, free: true},
		"a limit of one key":                 {limits: Limits{Keys: 1}, free: true},
		"a full disk, whatever the limit":    {full: true},
		"a full disk below the limits":       {limits: Limits{Keys: 8, Bytes: 8 * size}, full: true},
		"keys and bytes, of which keys lack": {limits: Limits{Keys: 8, Bytes: 80 * size}, mine: 6, want: record.FullError{Setting: keys, Limit: 6, Payer: user}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, test.limits)
			for i := range test.others {
				r.must(r.put(fmt.Sprint("other ", i), fmt.Sprint("other ", i), size, 0))
			}
			for i := range test.mine {
				r.must(r.put(user, fmt.Sprint(i), size, time.Hour))
			}
			r.must(r.put("", "by the daemon itself", size, 0))
			r.below.keys, r.below.size, r.below.full = test.keys, test.size, test.full
			err := r.put(user, "new", size, 0)
			if test.free {
				r.must(err)
				return
			}
			r.full(err, test.want)
			r.must(r.put("", "by the daemon itself, too", size, 0))
		})
	}
}

// What exists is never refused, unless it is large and grows by much.
func TestWhatExistsGoesOn(t *testing.T) {
	r := newRig(t, Limits{Keys: 4, Bytes: 100_000})
	r.must(r.put("user 1", "lock", 10, time.Minute))
	r.must(r.put("user 1", "large", 60_000, 0))
	disk := record.FullError{Setting: record.SettingDisk, Limit: 75_000, Payer: "user 1"}
	r.full(r.put("user 1", "large", 76_000, 0), disk)
	r.below.keys, r.below.size, r.below.full = 4, 200_000, true
	r.must(r.put("user 1", "lock", smallValue, time.Minute)) // with many receipts
	r.must(r.put("user 2", "large", 60_000+smallGrowth, 0))
	r.full(r.put("user 2", "large", 63_000, 0), record.FullError{})
	r.must(r.put("user 1", "large", 10, 0))
	if _, err := r.Change(Pay(t.Context(), "user 2"), record.Ask{Keys: []string{"lock"}}, func(record.View) ([]record.Write, error) {
		return []record.Write{{Key: "lock"}}, nil
	}); err != nil {
		t.Errorf("a deletion: %v", err)
	}
}

// A change that was refused or not carried out does not count, however often the rule ran; a
// change that may have been carried out does: once, however often it is tried, and for a time.
func TestUnknownOutcomes(t *testing.T) {
	r := newRig(t, Limits{Keys: 100})
	for err, keys := range map[error]int64{record.ErrBusy: 0, record.ErrInvalid: 0, record.ErrTerm: 0, record.ErrCrowded: 0, record.ErrUnconfirmed: 1, errors.New("no answer"): 1} {
		for i, term := range []time.Duration{0, time.Minute} {
			payer := fmt.Sprint(err, i)
			r.below.err = err
			if got := r.put(payer, payer, 10, term); !errors.Is(got, err) {
				t.Fatal(got)
			}
			r.below.err = nil
			r.counts(payer, keys)
		}
	}
	inner := r.below.Store
	for range 10 {
		r.below.Store, r.below.err = memory.New(nil), errors.New("no answer") // nothing is kept
		_ = r.put("user 1", "a", 10, 0)
		_ = r.put("user 1", "b", 10, 0)
	}
	r.counts("user 1", 2)
	r.below.Store, r.below.err = inner, nil
	r.must(r.put("user 1", "a", 10, 0))
	r.counts("user 1", 2)
	r.now += 2 * time.Hour
	r.must(r.put("user 1", "a", 10, 0))
	r.counts("user 1", 1)
}

// slow runs the rule after its Change has returned.
type slow struct {
	record.Store
	run sync.WaitGroup
	let chan struct{}
}

func (s *slow) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	s.run.Go(func() {
		<-s.let
		_, _ = s.Store.Change(context.WithoutCancel(ctx), ask, rule)
	})
	return 0, context.DeadlineExceeded
}

// A change counts that a store carries out when its caller has gone.
func TestCarriedOutLater(t *testing.T) {
	r := newRig(t, Limits{Keys: 3})
	s := &slow{Store: r.below, let: make(chan struct{})}
	r.Store.Store = s
	for i := range 4 {
		if err := r.put("user 1", fmt.Sprint(i), 10, time.Hour); err != context.DeadlineExceeded {
			t.Fatal(err)
		}
	}
	r.counts("user 1", 0)
	close(s.let)
	s.run.Wait()
	r.Store.Store = r.below
	r.counts("user 1", 3)
}

// A rule that refuses, at once or when it runs again, costs nothing.
func TestRuleThatRefuses(t *testing.T) {
	for after := range 2 {
		r := newRig(t, Limits{Keys: 3})
		failed, runs := errors.New("the rule's own"), 0
		if _, err := r.Change(Pay(t.Context(), "user 1"), record.Ask{Keys: []string{"a"}}, func(record.View) ([]record.Write, error) {
			if runs++; runs > after {
				return nil, failed
			}
			return []record.Write{{Key: "a", Value: []byte("1")}}, nil
		}); err != failed {
			t.Fatal(err)
		}
		r.counts("user 1", 0)
	}
}

// When most of many records have ended, the map of ending records is exchanged for a small one,
// and payers without a record are forgotten.
func TestRoomOfEndedRecords(t *testing.T) {
	r := newRig(t, Limits{Keys: 10_000})
	for i := range 1000 {
		r.must(r.put(fmt.Sprint("user ", i), fmt.Sprint("k", i), 10, time.Minute))
	}
	r.now += time.Hour
	for range 200 {
		r.must(r.put("user 1", "k0", 10, time.Hour))
	}
	if r.most >= 100 || len(r.ending) != 1 || len(r.payers) > r.most {
		t.Errorf("%d records of %d payers are in a map for %d", len(r.ending), len(r.payers), r.most)
	}
}

// model is what counts, the naive way.
type model struct {
	limits Limits
	made   map[string]made
	never  map[string]sum // what never ends, by payer
}

type made struct {
	payer string
	size  int64
	end   time.Duration
}

func (m *model) of(payer string) (mine, all sum) {
	for name, s := range m.never {
		all = sum{all.keys + s.keys, all.bytes + s.bytes}
		if name == payer {
			mine = s
		}
	}
	for _, one := range m.made {
		all = sum{all.keys + 1, all.bytes + one.size}
		if one.payer == payer {
			mine = sum{mine.keys + 1, mine.bytes + one.size}
		}
	}
	return mine, all
}

// wants is the limit that a change is to meet, "" for none.
func (m *model) wants(payer string, more sum) record.FullError {
	mine, all := m.of(payer)
	switch {
	case more == sum{}:
	case more.keys > 0 && all.keys+more.keys > m.limits.Keys:
		return record.FullError{Setting: record.SettingKeys, Limit: m.limits.Keys}
	case all.bytes+more.bytes > m.limits.Bytes:
		return record.FullError{Setting: record.SettingDisk, Limit: m.limits.Bytes}
	case more.keys > 0 && mine.keys+more.keys > m.limits.Keys*3/4:
		return record.FullError{Setting: record.SettingKeys, Limit: m.limits.Keys * 3 / 4, Payer: payer}
	case mine.bytes+more.bytes > m.limits.Bytes*3/4:
		return record.FullError{Setting: record.SettingDisk, Limit: m.limits.Bytes * 3 / 4, Payer: payer}
	}
	return record.FullError{}
}

// step makes one random change in both.
func (m *model) step(r *rig, random *rand.Rand) {
	for key, one := range m.made {
		if one.end <= r.now {
			delete(m.made, key)
		}
	}
	payer, key := fmt.Sprint("user ", random.IntN(3)), fmt.Sprint("k", random.IntN(40))
	term := time.Duration(random.IntN(3)*random.IntN(40)) * time.Second
	if key < "k2" { // a key has a term always or never, as those of the product
		term = 0
	} else {
		term += time.Second
	}
	w := record.Write{Key: key, Value: make([]byte, []int{10, 3000, 9000, 20_000}[random.IntN(4)]), TermMS: term.Milliseconds()}
	if term > 0 && random.IntN(8) == 0 {
		w.Value = nil
	}
	var before int
	var exists bool
	_, err := r.Change(Pay(r.Context(), payer), record.Ask{Keys: []string{key}}, func(v record.View) ([]record.Write, error) {
		before = len(v.Records[key].Value)
		_, exists = v.Records[key]
		return []record.Write{w}, nil
	})
	var more sum
	switch {
	case w.Value == nil:
	case !exists:
		more = sum{1, w.Size()}
	case len(w.Value) > max(before+smallGrowth, smallValue):
		more = sum{0, int64(len(w.Value) - before)}
	}
	want := m.wants(payer, more)
	if got, full := errors.AsType[*record.FullError](err); full != (want != record.FullError{}) || full && *got != want {
		r.Fatalf("at %v %s writes %d bytes to %s (%v, %d): %v instead of %+v", r.now, payer, len(w.Value), key, exists, before, err, want)
	}
	if err != nil {
		return
	}
	delete(m.made, key)
	mine := m.never[payer]
	switch {
	case w.Value == nil:
	case term > 0:
		m.made[key] = made{payer, w.Size(), r.now + term + time.Second}
	case !exists:
		m.never[payer] = sum{mine.keys + 1, mine.bytes + w.Size()}
	default:
		m.never[payer] = sum{mine.keys, max(0, mine.bytes+int64(len(w.Value)-before))}
	}
}

// The ledger refuses what a naive model refuses, over many random changes with terms that end.
func TestModel(t *testing.T) {
	for range 30 {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		r := newRig(t, Limits{Keys: 16 + 4*random.Int64N(4), Bytes: 80_000 + 4*random.Int64N(40_000)})
		m := &model{r.limits, map[string]made{}, map[string]sum{}}
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r.T = t
			for range 500 {
				r.now += time.Duration(1+random.IntN(3)) * time.Second
				m.step(r, random)
			}
		})
	}
}
