package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/storecall"
)

type markKey struct{}

// capable can wait.
type capable struct{ lock.Store }

func (capable) Waits() bool { return true }

func (capable) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	return lock.Lease{Token: 7}, fmt.Errorf("waited %v with %v", r.Wait, ctx.Value(markKey{}))
}

// An observed store waits only if the store does, and is observed waiting.
func TestObservedWait(t *testing.T) {
	var seen []string
	by := lock.Observer{
		Before: func(ctx context.Context, name string, _ lock.Request) context.Context {
			return context.WithValue(ctx, markKey{}, name)
		},
		After: func(ctx context.Context, o lock.Operation) {
			seen = append(seen, fmt.Sprint(ctx.Value(markKey{}), o.Name, o.Request.Key, o.Answer.Token, o.Err))
		},
	}
	r := lock.Request{Op: lock.Acquire, Key: "k", Wait: time.Second}
	plain := lock.OnRecords(memory.New(nil))
	if lock.Observed(plain, by).Waits() || !lock.Observed(capable{plain}, by).Waits() {
		t.Error("it does not wait as the store does")
	}
	_, err := lock.Observed(capable{plain}, by).Do(t.Context(), r)
	if want := []string{fmt.Sprint("acquire", "acquire", "k", 7, err)}; err == nil || err.Error() != "waited 1s with acquire" || !slices.Equal(seen, want) {
		t.Errorf("%v, %q, want %q", err, seen, want)
	}
}

// still does nothing.
type still struct{ lock.Store }

func (still) Do(context.Context, lock.Request) (lock.Lease, error) { return lock.Lease{}, nil }

// To observe a call takes no memory.
func TestObservingIsFree(t *testing.T) {
	s := lock.Observed(still{}, lock.Observer{After: func(context.Context, lock.Operation) {}})
	if n := testing.AllocsPerRun(200, func() { _, _ = s.Do(t.Context(), lock.Request{Op: lock.Acquire}) }); n > 0 {
		t.Errorf("a call takes %v allocations", n)
	}
}

func TestObservedOperations(t *testing.T) {
	var seen []string
	s := lock.Observed(lock.OnRecords(memory.New(func() int64 { return startMS })), lock.Observer{After: func(_ context.Context, o lock.Operation) {
		seen = append(seen, fmt.Sprintf("%s %s %d %s", o.Name, o.Request.Key, o.Answer.Token, lock.Outcome(o.Err)))
		if o.Took < 0 {
			t.Errorf("%s took %v", o.Name, o.Took)
		}
	}})
	r := lock.Request{Op: lock.Acquire, Tenant: "default", Key: "k", Owner: "o", LeaseID: lock.NewLeaseID(), TTLMS: 1000}
	do := func(op lock.Op, owner string) {
		r.Op, r.Owner = op, owner
		if r.TTLMS = 1000; op == lock.Release {
			r.TTLMS = 0
		}
		_, _ = s.Do(t.Context(), r)
	}
	do(lock.Acquire, "o")
	r.LeaseID = lock.NewLeaseID()
	do(lock.Acquire, "p")
	r.LeaseID = ""
	do(lock.Renew, "o")
	do(lock.Renew, "p")
	_, _ = s.Get(t.Context(), "default", "k")
	_, _ = s.Get(t.Context(), "default", "other")
	_, _ = s.List(t.Context(), "default", "j", 10)
	do(lock.Release, "o")
	want := []string{
		"acquire k 1 ok", "acquire k 0 held", "renew k 1 ok", "renew k 0 not_owned", "get k 1 ok", "get other 0 refused", "list j 0 ok", "release k 1 ok",
	}
	if !slices.Equal(seen, want) {
		t.Errorf("seen\n%q, want\n%q", seen, want)
	}
}

func TestOutcome(t *testing.T) {
	for want, errs := range map[string][]error{
		"ok":          {nil},
		"held":        {&lock.HeldError{}},
		"fenced":      {&lock.FencedError{}},
		"reused":      {lock.ErrRequestReused, fmt.Errorf("%w: %w", lock.ErrRequestReused, lock.ErrExpired)},
		"not_owned":   {lock.ErrNotOwned},
		"expired":     {lock.ErrExpired},
		"refused":     {lock.ErrInvalid, lock.ErrNotFound, lock.ErrOverloaded},
		"canceled":    {context.Canceled, lock.ErrClosed},
		"timeout":     {fmt.Errorf("redis: %w", context.DeadlineExceeded)},
		"unavailable": {errors.New("connection refused")},
	} {
		for _, err := range errs {
			if got := lock.Outcome(err); got != want {
				t.Errorf("%v is %s, want %s", err, got, want)
			}
		}
		if storecall.Failed(want) != (want == "timeout" || want == "unavailable") {
			t.Errorf("%s: %v", want, storecall.Failed(want))
		}
	}
}

// What the caller's context carries goes with the request to the store, though its
// end does not.
func TestHostPassesValuesOn(t *testing.T) {
	marks := make(chan any, 1)
	store := lock.Observed(lock.OnRecords(memory.New(func() int64 { return startMS })), lock.Observer{After: func(ctx context.Context, _ lock.Operation) {
		_, limited := ctx.Deadline()
		if !limited || ctx.Err() != nil {
			t.Errorf("the store's context: limited %v, %v", limited, ctx.Err())
		}
		marks <- ctx.Value(markKey{})
	}})
	host := lock.NewHost(store, clock.NewBelieved(clock.System{}, clock.Config{}), time.Minute)
	ctx := context.WithValue(t.Context(), markKey{}, "mine")
	if _, err := host.Acquire(ctx, lock.Request{Tenant: "default", Key: "k", Owner: "o", TTLMS: 60_000}); err != nil {
		t.Fatal(err)
	}
	if got := <-marks; got != "mine" {
		t.Errorf("the store saw %v", got)
	}
	if err := host.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
