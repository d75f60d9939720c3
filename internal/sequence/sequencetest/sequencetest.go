// Package sequencetest holds a sequence.Store to its contract. The rules of a sequence are
// the same code for all stores; Run shows that every kind of state and answer passes
// through a store, and that it judges the end of a TTL.
package sequencetest

import (
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/sequence"
)

// Target is a store, empty at first.
type Target struct {
	// Open opens it once more, as another host would. Run closes it if it is an io.Closer.
	Open func() (sequence.Store, error)
	// Advance moves the store's clock ahead. It is nil where the clock cannot be
	// set; then Expire lets a key's TTL pass.
	Advance func(d time.Duration)
	Expire  func(tenant, key string)
}

// Run runs the suite; each test has a Target of its own.
func Run(t *testing.T, target func(t *testing.T) Target) {
	for name, test := range map[string]func(*rig){
		"operations": operations, "names": names, "idle keys": idle, "declarations": declarations, "a model": model,
		"many callers": concurrent,
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
		if closer, ok := s.(io.Closer); ok {
			if err := closer.Close(); err != nil {
				r.Errorf("Close: %v", err)
			}
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

// operations is every kind of answer, by values of every size: they are rounded from 2^53
// on by a store that takes them for floating-point numbers.
func operations(r *rig) {
	for _, first := range []int64{0, 100, 1<<53 - 2, math.MaxInt64 - 5} {
		o := with(func(o *sequence.Options) { o.Start, o.StartSet = first, true })
		named := request("from "+o.Text(), 3, o)
		named.RequestID = "one"
		r.take(named, first, first+1, first+2)
		r.store = r.open()
		r.take(named, first, first+1, first+2)
		named.Count = 2
		r.refuse(named, sequence.ErrRequestReused, "another number")
		r.take(request(named.Key, 3, o), first+3, first+4, first+5)
	}
	o := sequence.DefaultOptions()
	got, err := r.store.Next(r.context(), request("many", sequence.MaxCount, o))
	if err != nil || got.First != 1 || got.Last() != sequence.MaxCount {
		r.Errorf("%+v (%v)", got, err)
	}
	var mismatch *sequence.MismatchError
	_, err = r.store.Next(r.context(), request("many", 1, with(func(o *sequence.Options) { o.Max = 9 })))
	if !errors.As(err, &mismatch) || mismatch.Recorded != o.Text() || mismatch.Key != "many" {
		r.Errorf("the error is %v, want a MismatchError with what is recorded", err)
	}
	fail := with(func(o *sequence.Options) { o.Max, o.Step, o.OnMax = 10, 3, sequence.Fail })
	r.take(request("fail", 2, fail), 3, 6)
	var exhausted *sequence.ExhaustedError
	_, err = r.store.Next(r.context(), request("fail", 2, fail))
	if !errors.As(err, &exhausted) || exhausted.Left != 1 || exhausted.Max != 10 || exhausted.Key != "fail" || !sequence.IsAnswer(err) {
		r.Errorf("the error is %v, want an ExhaustedError with 1 left", err)
	}
	few := request("fail", 2, fail)
	few.AtLeast = 1
	r.take(few, 9)

	// A caller that has gone gets an error, and repeats the call without a gap.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	gone := request("gone", 2, o)
	gone.RequestID = sequence.NewRequestID()
	if got, err := r.store.Next(ctx, gone); !errors.Is(err, context.Canceled) {
		r.Errorf("%v and the error %v, want Canceled", got, err)
	}
	r.take(gone, 1, 2)
	r.take(request("gone", 1, o), 3)
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
	r.refuse(request("", 1, plain), sequence.ErrInvalid, "0 bytes")
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
	if r.target.Advance != nil { // each use is a new beginning, and the last moment is in time
		r.target.Advance(time.Hour - time.Millisecond)
		r.take(request("idle", 1, hour), 2)
		r.target.Advance(time.Hour - time.Millisecond)
		r.take(named, 1)
		r.target.Advance(time.Hour - time.Millisecond)
		r.take(request("idle", 1, hour), 3)
	}
	r.expire(time.Hour, "idle")
	// Nothing of it is left: neither requests nor options.
	named.Options.Step = 5
	r.take(named, 5)
	r.take(request("kept", 1, plain), 2)
}

// declarations passes an operator's word on, with large numbers. Package sequence has the rules.
func declarations(r *rig) {
	declare := func(key string, last int64, o sequence.Options) error {
		return r.store.Declare(r.context(), sequence.Declaration{Tenant: "default", Key: key, Options: o, Last: last})
	}
	r.take(request("old", 5, sequence.DefaultOptions()), 1, 2, 3, 4, 5)
	tens := with(func(o *sequence.Options) { o.Step, o.Max = 10, 1<<60 })
	err := declare("old", 1<<53+1, tens)
	if errors.Is(err, errors.ErrUnsupported) {
		r.Skip("it takes no declarations")
	}
	if err != nil {
		r.Fatal(err)
	}
	r.take(request("old", 2, tens), 1<<53+11, 1<<53+21)
	if err := declare("bad", -1, tens); !errors.Is(err, sequence.ErrInvalid) {
		r.Errorf("the error is %v, want ErrInvalid", err)
	}
	ttl := with(func(o *sequence.Options) { o.TTL = time.Hour })
	if err := declare("idle", 7, ttl); err != nil {
		r.Fatal(err)
	}
	r.take(request("idle", 1, ttl), 8)
	r.expire(time.Hour, "idle")
	r.take(request("idle", 1, ttl), 1)
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
							r.Errorf("repeated, %v is %v", got, repeated)
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
