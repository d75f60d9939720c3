// Package recordtest holds a record.Store to its contract. Every store runs the same
// suite against its real server.
package recordtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// Target is a place for areas, which are empty at first.
type Target struct {
	// Open opens an area once more, as another process would. Run closes the stores that it
	// opens.
	Open func(area record.Area) (record.Store, error)
	// Advance moves the store's clock, back too. It is nil where the clock cannot be set;
	// then Expire ends the term of one record in the area One.
	Advance func(d time.Duration)
	Expire  func(key string)
	// Between: rules run outside of the store's lock, so that others can change the
	// records between a rule's view and its commit.
	Between bool
}

// One is the area of all tests, and Two the one beside it.
var (
	One = record.Area{Name: "one", MaxGrantMS: (24 * time.Hour).Milliseconds()}
	Two = record.Area{Name: "two", MaxGrantMS: time.Hour.Milliseconds()}
)

// Run runs the suite; each test has a Target of its own.
func Run(t *testing.T, target func(t *testing.T) Target) {
	for name, test := range map[string]func(*rig){
		"records": records, "all or nothing": together, "limits": limits, "the greatest change": greatest, "a caller who left": gone,
		"ends": ends, "a clock that steps back": back, "idle records": idle, "keys are counted": counted, "lists": lists, "watches": watches,
		"a model": model, "many callers": concurrent, "tokens": tokens,
		"changed between": between, "the present time": fresh, "a clock that is followed": followed, "refusals are confirmed": confirmed, "closed": closed,
		"two areas": apart, "watches of two areas": watched, "fences of two areas": fences, "the longest grant": longest,
	} {
		t.Run(name, func(t *testing.T) {
			test(newRig(t, target(t), One))
		})
	}
}

// callTime is for a slow machine.
const callTime = time.Minute

type rig struct {
	*testing.T
	target Target
	area   record.Area
	store  record.Store
	base   int64 // the floor of the new store
}

// newRig opens an area. An operator says that it is new, where the store cannot know that.
func newRig(t *testing.T, target Target, area record.Area) *rig {
	t.Helper()
	r := &rig{T: t, target: target, area: area}
	r.store = r.open()
	if r.read(record.Ask{}).Fence.Doubt {
		must.Succeed(r, r.store.Init(r.context()))
	}
	r.base = r.read(record.Ask{}).Floor
	return r
}

func (r *rig) open() record.Store {
	r.Helper()
	s, err := r.target.Open(r.area)
	must.Succeed(r, err)
	r.Cleanup(func() {
		if err := s.Close(); err != nil {
			r.Errorf("Close: %v", err)
		}
	})
	return s
}

func (r *rig) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	r.Cleanup(cancel)
	return ctx
}

// write changes one or more records, without a look at them.
func (r *rig) write(writes ...record.Write) {
	r.Helper()
	var ask record.Ask
	for _, w := range writes {
		ask.Keys = append(ask.Keys, w.Key)
	}
	if _, err := r.store.Change(r.context(), ask, func(record.View) ([]record.Write, error) { return writes, nil }); err != nil {
		r.Fatal(err)
	}
}

func text(key, value string) record.Write { return record.Write{Key: key, Value: []byte(value)} }

func (r *rig) read(ask record.Ask) record.View {
	r.Helper()
	v, err := r.store.Read(r.context(), ask)
	must.Succeed(r, err)
	return v
}

// see compares a record with the wanted text: its value, which has an exclamation mark at its end
// where the term is over, or "-" for none.
func (r *rig) see(key, want string) {
	r.Helper()
	if got := shown(r.read(record.Ask{Keys: []string{key}}), key); got != want {
		r.Errorf("%s is %q, want %q", key, got, want)
	}
}

func shown(v record.View, key string) string {
	found, ok := v.Records[key]
	if !ok {
		return "-"
	}
	if found.Over {
		return string(found.Value) + "!"
	}
	return string(found.Value)
}

// seeFloor compares how much the floor has risen.
func (r *rig) seeFloor(want int64) {
	r.Helper()
	if got := r.read(record.Ask{}).Floor - r.base; got != want {
		r.Errorf("the floor has risen by %d, want %d", got, want)
	}
}

var errRule = errors.New("the rule says no")

func records(r *rig) {
	r.see("a", "-")
	r.write(text("a", "one"))
	r.see("a", "one")
	r.write(text("a", "two"))
	r.store = r.open()
	r.see("a", "two")
	r.see("b", "-")
	all := strings.Repeat("\x00\xff\n日", 100)
	r.write(text("a", all), record.Write{Key: "empty", Value: []byte{}})
	r.see("a", all)
	if v := r.read(record.Ask{Keys: []string{"empty"}}).Records["empty"].Value; v == nil || len(v) > 0 {
		r.Errorf("an empty value is read as %q, nil %v", v, v == nil)
	}
	for _, key := range []string{"a/b", "a\nb", " ", `quo"te'\`, "%00", strings.Repeat("k", record.MaxKey)} {
		r.write(text(key, key))
		r.see(key, key)
	}
	r.write(record.Write{Key: "a"})
	r.see("a", "-")
	r.write(record.Write{Key: "a"}) // there is nothing to delete
	r.write(text("a", "again"))
	r.see("a", "again")
	// The shown value is the caller's.
	shown := r.read(record.Ask{Keys: []string{"a"}}).Records["a"].Value
	shown[0] = 'X'
	r.see("a", "again")
}

// together: all writes of a rule, or none, and the rule's view.
func together(r *rig) {
	r.write(text("a", "1"), text("b", "1"))
	ask := record.Ask{Keys: []string{"a", "b", "c"}}
	before := r.read(ask).NowMS
	at, err := r.store.Change(r.context(), ask, func(v record.View) ([]record.Write, error) {
		if shown(v, "a") != "1" || shown(v, "b") != "1" || shown(v, "c") != "-" {
			return nil, nil // an old view; a run without writes is confirmed
		}
		return []record.Write{text("a", "2"), {Key: "b"}, text("c", "2")}, nil
	})
	if err != nil || at < before {
		r.Errorf("at %d, not before %d (%v)", at, before, err)
	}
	r.see("a", "2")
	r.see("b", "-")
	r.see("c", "2")
	if _, err := r.store.Change(r.context(), ask, func(record.View) ([]record.Write, error) {
		return []record.Write{text("a", "3"), text("b", "3")}, errRule
	}); err != errRule {
		r.Errorf("the error is %v, want the rule's own", err)
	}
	if _, err := r.store.Change(r.context(), ask, func(record.View) ([]record.Write, error) { return nil, nil }); err != nil {
		r.Errorf("no writes: %v", err)
	}
	r.see("a", "2")
	r.see("b", "-")
	if v := r.read(ask); v.Fence != (record.Fence{}) {
		r.Errorf("a new store has the fence %+v", v.Fence)
	}
}

// limits: what record's own checks refuse is refused by each call.
func limits(r *rig) {
	r.write(text("a", "1"))
	ask := record.Ask{Keys: []string{"a"}}
	impossible := record.Ask{Keys: []string{"a", "a"}}
	_, err1 := r.store.Change(r.context(), impossible, func(record.View) ([]record.Write, error) { return nil, nil })
	_, err2 := r.store.Read(r.context(), impossible)
	_, err3 := r.store.Change(r.context(), ask, func(record.View) ([]record.Write, error) { return []record.Write{text("b", "")}, nil })
	_, err4 := r.store.List(r.context(), "", "", 1)
	_, err5 := r.store.Watch(r.context(), "")
	for i, err := range []error{err1, err2, err3, err4, err5} {
		if !errors.Is(err, record.ErrInvalid) && !errors.Is(err, errors.ErrUnsupported) {
			r.Errorf("call %d has the error %v, want ErrInvalid", i+1, err)
		}
	}
	r.see("a", "1")
	r.write(record.Write{Key: "a", Value: make([]byte, record.MaxValue), TermMS: record.MaxTermMS, KeepMS: record.MaxKeepMS})
}

// greatest: a change within all limits fits into one transaction.
func greatest(r *rig) {
	var ask record.Ask
	for i := range record.MaxKeys {
		ask.Keys = append(ask.Keys, fmt.Sprint("k", i))
	}
	for round := range 3 {
		for begin := 0; begin < record.MaxKeys; begin += record.MaxWrites {
			var writes []record.Write
			for _, key := range ask.Keys[begin : begin+record.MaxWrites] {
				w := termed(key, strings.Repeat("v", record.MaxValue/record.MaxWrites), time.Hour)
				w.Mark = r.base + 5
				if round == 2 {
					w = record.Write{Key: key}
				}
				writes = append(writes, w)
			}
			if _, err := r.store.Change(r.context(), ask, func(record.View) ([]record.Write, error) { return writes, nil }); err != nil {
				r.Fatalf("round %d: %v", round, err)
			}
		}
		if v := r.read(ask); round < 2 && len(v.Records) != record.MaxKeys {
			r.Errorf("round %d: %d records", round, len(v.Records))
		}
	}
	r.seeFloor(5)
}

// gone: the call of a caller that has gone does nothing.
func gone(r *rig) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := r.store.Change(ctx, record.Ask{Keys: []string{"a"}}, func(record.View) ([]record.Write, error) {
		return []record.Write{text("a", "1")}, nil
	}); !errors.Is(err, context.Canceled) {
		r.Errorf("the error is %v, want Canceled", err)
	}
	if _, err := r.store.Read(ctx, record.Ask{}); !errors.Is(err, context.Canceled) {
		r.Errorf("the error of Read is %v, want Canceled", err)
	}
	r.see("a", "-")
}

// closed: closing a client of the store leaves others alone, and can be repeated. Nothing
// of a watch stays with a context that lasts.
func closed(r *rig) {
	s, err := r.target.Open(r.area)
	must.Succeed(r, err)
	var ctx lasting
	if _, err := s.Watch(&ctx, "w/"); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		r.Error(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			r.Errorf("Close: %v", err)
		}
	}
	await.Eventually(r, "no function waits for the end of the context", func() bool { return ctx.waiting.Load() == 0 })
}

// lasting is a context that does not end, and counts the functions that wait for its end.
type lasting struct{ waiting atomic.Int64 }

func (*lasting) Deadline() (end time.Time, ok bool) { return end, false }
func (*lasting) Done() <-chan struct{}              { return never }
func (*lasting) Err() error                         { return nil }
func (*lasting) Value(any) any                      { return nil }

var never = make(chan struct{})

// AfterFunc is called by the package context.
func (c *lasting) AfterFunc(func()) (stop func() bool) {
	c.waiting.Add(1)
	return sync.OnceValue(func() bool { c.waiting.Add(-1); return true })
}

func lists(r *rig) {
	var want []string
	for i := range 25 {
		key := fmt.Sprintf("p/%02d", i)
		want = append(want, key)
		r.write(text(key, strings.Repeat("v", i)))
	}
	r.write(text("p", "before"), text("p0", "after"), text("o/1", "other"))
	var got []string
	after, pages := "", 0
	for {
		page, err := r.store.List(r.context(), "p/", after, 10)
		must.Succeed(r, err)
		if len(page) == 0 {
			break
		}
		pages++
		for _, h := range page {
			if string(h.Value) != strings.Repeat("v", len(got)) || h.Over {
				r.Errorf("%s has the head %q", h.Key, h.Value)
			}
			got = append(got, h.Key)
		}
		after = page[len(page)-1].Key
	}
	if !slices.Equal(got, want) || pages != 3 {
		r.Errorf("%d pages have %q", pages, got)
	}
	// The keys right before and right after the ones with a prefix, by their bytes.
	for prefix, beside := range map[string][2]string{
		"q/": {"q.\U0010ffff", "q0"}, "r\x7f": {"r~\U0010ffff", "r\u0080"}, "s\ud7ff": {"s\ud7fe\U0010ffff", "s\ue000"},
		"t\U0010ffff": {"t\U0010fffe\U0010ffff", "u"}, "\U0010ffff": {"\U0010fffe\U0010ffff", ""},
	} {
		want := []string{prefix, prefix + "\U0010ffff\U0010ffff"}
		for _, key := range slices.Concat(want, beside[:]) {
			if key != "" {
				r.write(text(key, "1"))
			}
		}
		var got []string
		page, err := r.store.List(r.context(), prefix, "", 10)
		must.Succeed(r, err)
		for _, h := range page {
			got = append(got, h.Key)
		}
		if !slices.Equal(got, want) {
			r.Errorf("the list of %q is %q, want %q", prefix, got, want)
		}
	}
	r.write(text("long", strings.Repeat("x", record.MaxHead)+"y"), record.Write{Key: "long/over", Value: []byte("t"), TermMS: 1000, KeepMS: record.MaxKeepMS})
	r.expire(time.Second, "long/over")
	page, err := r.store.List(r.context(), "long", "", 10)
	if err != nil || len(page) != 2 || string(page[0].Value) != strings.Repeat("x", record.MaxHead) || page[0].Over || !page[1].Over {
		r.Errorf("the list of long values is %+v (%v)", page, err)
	}
}

// watches: a token after each change that tells, and none too few.
func watches(r *rig) {
	ctx, cancel := context.WithCancel(r.context())
	tokens, err := r.open().Watch(ctx, "w/")
	if errors.Is(err, errors.ErrUnsupported) {
		cancel()
		r.Skip("it cannot tell")
	}
	must.Succeed(r, err)
	wait := func(what string) {
		r.Helper()
		select {
		case _, ok := <-tokens:
			if !ok {
				r.Fatalf("%s: the watch has ended", what)
			}
		case <-ctx.Done():
			r.Fatalf("%s: there is no token", what)
		}
	}
	r.write(record.Write{Key: "w/a", Value: []byte("1"), Tell: true})
	wait("a new record")
	r.write(text("w/a", "2"), text("v/a", "2"), record.Write{Key: "w/b", Value: []byte("2"), Tell: true})
	wait("another one")
	r.write(record.Write{Key: "w/b", Tell: true})
	wait("a deletion")
	if r.target.Expire != nil { // a term ends without a client's doing
		w := termed("w/c", "1", time.Hour)
		w.Tell = true
		r.write(w)
		wait("a term")
		w.Tell = false
		r.write(w)
		r.target.Expire("w/c")
		wait("its end")
	}
	cancel()
	deadline := time.After(callTime)
	for {
		select {
		case _, ok := <-tokens:
			if !ok {
				return
			}
		case <-deadline:
			r.Fatal("the watch does not end")
		}
	}
}
