package turns

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func text(s string) int { return len(s) }

func take[K any](t *testing.T, all *Turns[K], keys ...string) *Held[K] {
	t.Helper()
	h, err := all.Take(t.Context(), keys)
	must.Succeed(t, err)
	return h
}

// Callers come in the order in which they asked; a caller that leaves holds up no other.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := New(text)
		all.Repeatable() // by chance, two of the keys could have one stripe
		h := take(t, all, "a", "b")
		var got []int
		for i := range 5 {
			go func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if i == 2 {
					time.AfterFunc(time.Second, cancel)
				}
				h, err := all.Take(ctx, []string{"b", "a", fmt.Sprint(i)})
				if err == nil {
					got = append(got, i)
					h.Give()
				} else if i != 2 || !errors.Is(err, context.Canceled) {
					t.Errorf("%d: %v", i, err)
				}
			}()
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		h.Give()
		synctest.Wait()
		if !slices.Equal(got, []int{0, 1, 3, 4}) {
			t.Errorf("the order is %v", got)
		}
		take(t, all, "a", "b", "2").Give()
	})
}

// The memory is bounded, and keeps the latest records.
func TestRemembers(t *testing.T) {
	all := New(text)
	const size = maxBytes / 4
	h := take(t, all, "k")
	for i := range 100 {
		h.Remember(fmt.Sprint(i), string(make([]byte, size))) // as if of the same stripe
	}
	h.Remember("k", "1")
	h.Remember("k", "2")
	h.Give()
	h = take(t, all, "k")
	defer h.Give()
	if s := h.stripes[0]; h.Known("k") != "2" || s.bytes > maxBytes || len(s.entries) > 4 {
		t.Errorf("%q is known, and %d bytes in %d entries", h.Known("k"), s.bytes, len(s.entries))
	}
	h.Remember("k", string(make([]byte, maxBytes)))
	if h.Known("k") != "" {
		t.Error("what is too long is remembered")
	}
	for key := range h.stripes[0].entries {
		h.Forget(key)
	}
	if n := h.stripes[0].bytes; n != 0 {
		t.Errorf("%d bytes of nothing", n)
	}
}

// remembers shows what may be old, and notes whether it was asked for the present.
type remembers struct{ races }

func (r *remembers) Settled(bool) bool             { return false }
func (r *remembers) Confirm(context.Context) error { return errConfirms }

var errConfirms = errors.New("the present is looked at")

// A decision not to write rests on the present, be it a refusal or an answer.
func TestDecisionsNotToWrite(t *testing.T) {
	all := New(text)
	ask := record.Ask{Keys: []string{"k"}}
	for _, answer := range []error{errors.New("held"), nil} {
		h := take(t, all, "k")
		_, err := Run(t.Context(), h, &remembers{}, "place", ask, func(record.View) ([]record.Write, error) { return nil, answer })
		h.Give()
		if !errors.Is(err, errConfirms) {
			t.Errorf("%v ends with %v", answer, err)
		}
	}
}

// races loses so many races, and then wins.
type races struct{ losses int }

func (r *races) View() (record.View, bool)     { return record.View{}, true }
func (r *races) Settled(bool) bool             { return true }
func (r *races) Confirm(context.Context) error { return nil }
func (r *races) Commit(context.Context, []record.Write) (int64, Outcome, error) {
	if r.losses--; r.losses < 0 {
		return 7, Done, nil
	}
	return 0, Raced, nil
}

// A change that loses races pauses for longer each time, and gives up in the end, or when
// its caller does. The next change of the same key waits before it begins.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := New(text)
		ask := record.Ask{Keys: []string{"k"}}
		run := func(ctx context.Context, losses int) (took time.Duration, err error) {
			h := take(t, all, "k")
			defer h.Give()
			began := time.Now()
			at, err := Run(ctx, h, &races{losses}, "place", ask, func(record.View) ([]record.Write, error) {
				return []record.Write{{Key: "k", Value: []byte("1")}}, nil
			})
			if err == nil && at != 7 {
				t.Errorf("it was done at %d", at)
			}
			h.Remember("k", "1")
			return time.Since(began), err
		}
		if took, err := run(t.Context(), 0); err != nil || took != 0 {
			t.Errorf("without a race it took %v (%v)", took, err)
		}
		if took, err := run(t.Context(), 20); err != nil || took < 20*firstWait || took > 20*maxWait {
			t.Errorf("20 races took %v (%v)", took, err)
		}
		if took, err := run(t.Context(), 0); err != nil || took < maxWait/2 {
			t.Errorf("the change after the races took %v (%v)", took, err)
		}
		for range 10 {
			_, _ = run(t.Context(), 0)
		}
		if took, err := run(t.Context(), 0); err != nil || took != 0 {
			t.Errorf("long after the races it took %v (%v)", took, err)
		}
		if _, err := run(t.Context(), maxTries+1); !errors.Is(err, record.ErrBusy) {
			t.Errorf("after all tries: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if took, err := run(ctx, maxTries); !errors.Is(err, record.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) || took > time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
