// Package sequencetest holds a sequence.Store to its contract. Every store runs
// the same suite against its real server.
package sequencetest

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/sequence"
)

// Target is a store, empty at first, that knows all that it needs to know.
type Target struct {
	// Open opens it once more, as another host would. Run closes what it opens.
	Open func() (sequence.Store, error)
	// Advance moves the store's clock ahead. It is nil where the clock cannot be
	// set; then Expire lets a key's TTL pass.
	Advance func(d time.Duration)
	Expire  func(tenant, key string)
}

// Run runs the suite; each test has a Target of its own.
func Run(t *testing.T, target func(t *testing.T) Target) {
	for name, test := range map[string]func(*rig){
		"counts": counts, "batches": batches, "the maximum": maximum, "int64": overflow,
		"names": names, "requests that come again": again, "options": options, "idle keys": idle,
		"declarations": declarations, "a caller who left": gone, "a model": model, "many callers": concurrent,
	} {
		t.Run(name, func(t *testing.T) {
			tg := target(t)
			r := &rig{T: t, target: tg}
			r.store = r.open()
			test(r)
		})
	}
}

// callTime is for a slow machine.
const callTime = time.Minute

type rig struct {
	*testing.T
	target Target
	store  sequence.Store
}

func (r *rig) open() sequence.Store {
	r.Helper()
	s, err := r.target.Open()
	if err != nil {
		r.Fatal(err)
	}
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

func request(key string, count int, o sequence.Options) sequence.Request {
	return sequence.Request{Tenant: "default", Key: key, Count: count, Options: o}
}

func with(change func(*sequence.Options)) sequence.Options {
	o := sequence.DefaultOptions()
	change(&o)
	return o
}

// take expects values.
func (r *rig) take(req sequence.Request, want ...int64) {
	r.Helper()
	got, err := r.store.Next(r.context(), req)
	if err != nil || !slices.Equal(got.Values(), want) {
		r.Errorf("%d of %s: %v (%v), want %v", req.Count, req.Key, got.Values(), err, want)
	}
}

// refuse expects an error, and that it is an answer.
func (r *rig) refuse(req sequence.Request, want error, words string) {
	r.Helper()
	got, err := r.store.Next(r.context(), req)
	if !errors.Is(err, want) || !sequence.IsAnswer(err) || !strings.Contains(err.Error(), words) {
		r.Errorf("%d of %q: %v and the error %v, want %v with %q", req.Count, req.Key, got, err, want, words)
	}
}

func (r *rig) exhausted(req sequence.Request, left int64) {
	r.Helper()
	got, err := r.store.Next(r.context(), req)
	var e *sequence.ExhaustedError
	if !errors.As(err, &e) || e.Left != left || e.Max != req.Options.Limit() || e.Key != req.Key || !sequence.IsAnswer(err) {
		r.Errorf("%d of %s: %v and the error %v, want an ExhaustedError with %d left", req.Count, req.Key, got, err, left)
	}
}

func counts(r *rig) {
	plain := sequence.DefaultOptions()
	r.take(request("alice", 1, plain), 1)
	r.take(request("alice", 1, plain), 2)
	r.take(request("bob", 1, plain), 1)
	r.store = r.open()
	r.take(request("alice", 1, plain), 3)
	r.take(request("orders", 3, with(func(o *sequence.Options) { o.Step = 1000 })), 1000, 2000, 3000)
	zero := with(func(o *sequence.Options) { o.StartSet = true })
	r.take(request("zero", 2, zero), 0, 1)
	r.take(request("zero", 1, zero), 2)
	r.take(request("from", 2, with(func(o *sequence.Options) { o.Start, o.StartSet, o.Step = 100, true, 7 })), 100, 107)
}

func batches(r *rig) {
	plain := sequence.DefaultOptions()
	r.take(request("k", 5, plain), 1, 2, 3, 4, 5)
	got, err := r.store.Next(r.context(), request("k", sequence.MaxCount, plain))
	if err != nil || got.First != 6 || got.Last() != 5+sequence.MaxCount || got.Count != sequence.MaxCount {
		r.Errorf("%+v (%v)", got, err)
	}
	r.take(request("k", 1, plain), 6+sequence.MaxCount)
	for _, n := range []int{0, -1, sequence.MaxCount + 1} {
		r.refuse(request("k", n, plain), sequence.ErrInvalid, "count")
	}
}

func maximum(r *rig) {
	ten := with(func(o *sequence.Options) { o.Max = 10 })
	r.take(request("reset", 8, ten), 1, 2, 3, 4, 5, 6, 7, 8)
	// What does not fit begins the next run as a whole.
	r.take(request("reset", 3, ten), 1, 2, 3)
	r.take(request("reset", 7, ten), 4, 5, 6, 7, 8, 9, 10)
	r.take(request("reset", 1, ten), 1)
	r.take(request("reset", 8, ten), 2, 3, 4, 5, 6, 7, 8, 9)
	few := request("reset", 5, ten)
	few.AtLeast = 1
	r.take(few, 10) // fewer will do
	r.take(few, 1, 2, 3, 4, 5)
	few.AtLeast = 6
	r.refuse(few, sequence.ErrInvalid, "at least")
	r.refuse(request("reset", 11, ten), sequence.ErrInvalid, "do not fit")
	all := request("all", 20, ten)
	all.AtLeast = 1
	r.take(all, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10) // also of a key that begins

	fail := with(func(o *sequence.Options) { o.Max, o.Step, o.OnMax = 10, 3, sequence.Fail })
	r.take(request("fail", 2, fail), 3, 6)
	r.exhausted(request("fail", 2, fail), 1)
	few = request("fail", 2, fail)
	few.AtLeast = 1
	r.take(few, 9)
	r.exhausted(request("fail", 1, fail), 0)
	r.exhausted(few, 0)
}

// Beyond int64 there is nothing, and no value comes out wrong on the way there:
// not by rounding, which begins at 2^53, and not by wrapping.
func overflow(r *rig) {
	for _, first := range []int64{1<<53 - 2, math.MaxInt64 - 5} {
		o := with(func(o *sequence.Options) { o.Start, o.StartSet = first, true })
		key := "from " + o.Text()
		r.take(request(key, 1, o), first)
		r.take(request(key, 4, o), first+1, first+2, first+3, first+4)
		r.take(request(key, 1, o), first+5)
		if first == math.MaxInt64-5 {
			r.exhausted(request(key, 1, o), 0)
			r.exhausted(request(key, 6, o), 0)
			r.refuse(request(key, 7, o), sequence.ErrInvalid, "do not fit")
		}
	}
	// With OnMax too, where no maximum is set.
	huge := with(func(o *sequence.Options) { o.Step = math.MaxInt64 })
	r.take(request("huge", 1, huge), math.MaxInt64)
	r.exhausted(request("huge", 1, huge), 0)
	r.refuse(request("huge", 2, huge), sequence.ErrInvalid, "do not fit")
	again := with(func(o *sequence.Options) { o.Step, o.Max = math.MaxInt64/2, math.MaxInt64 })
	r.take(request("again", 2, again), math.MaxInt64/2, math.MaxInt64-1)
	r.take(request("again", 1, again), math.MaxInt64/2)
}

func names(r *rig) {
	plain := sequence.DefaultOptions()
	for _, key := range []string{"a", "a:b", "a/b", " ", "日本 語", `quo"te\`, "%00", "{tag}", strings.Repeat("k", sequence.MaxKey)} {
		r.take(request(key, 1, plain), 1)
	}
	// A tenant's keys are its own.
	for _, n := range [][2]string{{"t", "u:k"}, {"t.u", "k"}, {"t", "u.k"}, {"u", "a"}} {
		r.take(sequence.Request{Tenant: n[0], Key: n[1], Count: 1, Options: plain}, 1)
	}
	for key, words := range map[string]string{
		"": "0 bytes", strings.Repeat("k", sequence.MaxKey+1): "513 bytes", "a\nb": "control character U+000A at byte 1",
		"\xff": "not UTF-8", "\u0085": "control character", "a\x00": "control character",
	} {
		r.refuse(request(key, 1, plain), sequence.ErrInvalid, words)
	}
	for _, tenant := range []string{"", "a:b", "a/b", strings.Repeat("t", 65)} {
		r.refuse(sequence.Request{Tenant: tenant, Key: "k", Count: 1, Options: plain}, sequence.ErrInvalid, "tenant")
	}
	for _, id := range []string{"a b", "a\n", strings.Repeat("i", sequence.MaxRequestID+1)} {
		req := request("k", 1, plain)
		req.RequestID = id
		r.refuse(req, sequence.ErrInvalid, "request ID")
	}
}

func again(r *rig) {
	plain := sequence.DefaultOptions()
	named := func(id string, count int) sequence.Request {
		req := request("k", count, plain)
		req.RequestID = id
		return req
	}
	r.take(named("one", 3), 1, 2, 3)
	r.take(named("on", 1), 4) // no beginning or end of a known one is it
	r.take(named("one", 3), 1, 2, 3)
	r.store = r.open()
	r.take(named("one", 3), 1, 2, 3)
	r.refuse(named("one", 2), sequence.ErrRequestReused, "another number")
	less := named("one", 5)
	less.AtLeast = 2
	r.take(less, 1, 2, 3)
	r.take(request("k", 1, plain), 5)
	// It is remembered for so many calls, and not one more.
	for i := range sequence.MaxReceipts - 2 {
		r.take(named(strings.Repeat("x", sequence.MaxRequestID-i), 1), int64(6+i))
	}
	r.take(named("one", 3), 1, 2, 3)
	r.take(named("last", 1), int64(6+sequence.MaxReceipts-2))
	next := int64(6 + sequence.MaxReceipts - 1)
	r.take(named("one", 3), next, next+1, next+2)
	// Another key knows nothing of it.
	other := named("one", 1)
	other.Key = "other"
	r.take(other, 1)
	// A call that is repeated after the key started over gets what it got.
	two := with(func(o *sequence.Options) { o.Max = 2 })
	first := request("short", 2, two)
	first.RequestID = "first"
	r.take(first, 1, 2)
	r.take(request("short", 1, two), 1)
	r.take(first, 1, 2)
	r.take(request("short", 1, two), 2)
}

func options(r *rig) {
	plain := sequence.DefaultOptions()
	r.take(request("k", 1, plain), 1)
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
		r.refuse(request("k", 1, o), sequence.ErrInvalid, words)
	}
	var mismatch *sequence.MismatchError
	_, err := r.store.Next(r.context(), request("k", 1, with(func(o *sequence.Options) { o.Max = 9 })))
	if !errors.As(err, &mismatch) || mismatch.Recorded != plain.Text() || mismatch.Key != "k" {
		r.Errorf("the error is %v, want a MismatchError with what is recorded", err)
	}
	// The same said in another way, and what is a host's own matter.
	r.take(request("k", 1, with(func(o *sequence.Options) { o.Start, o.StartSet, o.Block = 1, true, 10 })), 2)
}

// expire lets so much time pass, or, where the clock cannot be set, ends the
// keys.
func (r *rig) expire(d time.Duration, keys ...string) {
	if r.target.Advance != nil {
		r.target.Advance(d)
		return
	}
	for _, key := range keys {
		r.target.Expire("default", key)
	}
}

func idle(r *rig) {
	hour := with(func(o *sequence.Options) { o.TTL = time.Hour })
	plain := sequence.DefaultOptions()
	named := request("idle", 1, hour)
	named.RequestID = "before"
	r.take(named, 1)
	r.take(request("kept", 1, plain), 1)
	if r.target.Advance != nil {
		// Each use is a new beginning, and the last moment is in time.
		for want := range int64(3) {
			r.target.Advance(time.Hour - time.Millisecond)
			r.take(request("idle", 1, hour), want+2)
		}
		r.target.Advance(time.Hour - time.Millisecond)
		r.take(named, 1) // a call that comes again too
		r.target.Advance(time.Hour - time.Millisecond)
		r.take(request("idle", 1, hour), 5)
	}
	r.expire(time.Hour, "idle")
	r.take(request("idle", 2, hour), 1, 2)
	r.take(request("kept", 1, plain), 2)
	r.expire(time.Hour, "idle")
	// Nothing of it is left: neither requests nor options.
	other := with(func(o *sequence.Options) { o.TTL, o.Step = time.Hour, 5 })
	named.Options = other
	r.take(named, 5)
}

func declarations(r *rig) {
	declare := func(key string, last int64, o sequence.Options) error {
		return r.store.Declare(r.context(), sequence.Declaration{Tenant: "default", Key: key, Options: o, Last: last})
	}
	plain := sequence.DefaultOptions()
	err := declare("new", 41, plain)
	if errors.Is(err, errors.ErrUnsupported) {
		r.Skip("it takes no declarations")
	}
	if err != nil {
		r.Fatal(err)
	}
	r.take(request("new", 1, plain), 42)
	// It counts in another way from then on, and calls from before are forgotten.
	named := request("old", 5, plain)
	named.RequestID = "before"
	r.take(named, 1, 2, 3, 4, 5)
	tens := with(func(o *sequence.Options) { o.Step, o.Max = 10, 1<<60 })
	if err := declare("old", 1<<53+1, tens); err != nil {
		r.Fatal(err)
	}
	r.refuse(named, sequence.ErrInvalid, "step=10")
	named.Options = tens
	r.take(named, 1<<53+11, 1<<53+21, 1<<53+31, 1<<53+41, 1<<53+51)
	for last, o := range map[int64]sequence.Options{
		-1: plain, 11: with(func(o *sequence.Options) { o.Max = 10 }), 98: with(func(o *sequence.Options) { o.Start, o.StartSet = 100, true }),
	} {
		if err := declare("bad", last, o); !errors.Is(err, sequence.ErrInvalid) {
			r.Errorf("last value %d: the error is %v, want ErrInvalid", last, err)
		}
	}
	ttl := with(func(o *sequence.Options) { o.TTL = time.Hour })
	if err := declare("idle", 7, ttl); err != nil {
		r.Fatal(err)
	}
	r.take(request("idle", 1, ttl), 8)
	r.expire(time.Hour, "idle")
	r.take(request("idle", 1, ttl), 1)
}

// A caller who has gone gets an error, and repeats the call without a gap.
func gone(r *rig) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	req := request("k", 2, sequence.DefaultOptions())
	req.RequestID = sequence.NewRequestID()
	if got, err := r.store.Next(ctx, req); !errors.Is(err, context.Canceled) {
		r.Errorf("%v and the error %v, want Canceled", got, err)
	}
	r.take(req, 1, 2)
	r.take(request("k", 1, sequence.DefaultOptions()), 3)
}

// concurrent: callers on several hosts take from two keys at once, some repeat
// their calls. Together they get every value once, and each of them in order.
func concurrent(r *rig) {
	const hosts, callers, calls = 3, 4, 25
	step := with(func(o *sequence.Options) { o.Step = 3 })
	keys := map[string]sequence.Options{"a": sequence.DefaultOptions(), "b": step}
	var mu sync.Mutex
	seen := map[string][]int64{}
	var all sync.WaitGroup
	for h := range hosts {
		store := r.open()
		for c := range callers {
			all.Go(func() {
				last := map[string]int64{}
				for i := range calls {
					key := []string{"a", "b"}[(h+c+i)%2]
					req := request(key, 1+(c+i)%4, keys[key])
					req.RequestID = sequence.NewRequestID()
					got, err := store.Next(r.context(), req)
					if err == nil && i%5 == 0 {
						var repeated sequence.Range
						if repeated, err = store.Next(r.context(), req); err == nil && repeated != got {
							// So many others may have been in between that it was forgotten; then
							// its values are new, and counted too.
							mu.Lock()
							seen[key] = append(seen[key], repeated.Values()...)
							mu.Unlock()
						}
					}
					if err != nil || got.First <= last[key] {
						r.Errorf("%v after %d (%v)", got, last[key], err)
						return
					}
					last[key] = got.Last()
					mu.Lock()
					seen[key] = append(seen[key], got.Values()...)
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	for key, values := range seen {
		slices.Sort(values)
		for i, v := range values {
			if want := int64(i+1) * keys[key].Step; v != want {
				r.Fatalf("%s: value %d in order is %d, want %d", key, i, v, want)
			}
		}
	}
}
