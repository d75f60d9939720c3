package sequence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/storecall"
)

type declares struct{ Store }

func (declares) Declare(context.Context, Declaration) error { return ErrInvalid }

func TestObserved(t *testing.T) {
	type key struct{}
	var seen []string
	s := Observed(declares{OnRecords(memory.New(nil))}, Observer{
		Before: func(ctx context.Context, name string, _ Request) context.Context {
			return context.WithValue(ctx, key{}, name)
		},
		After: func(ctx context.Context, o Operation) {
			seen = append(seen, fmt.Sprint(ctx.Value(key{}), " ", o.Name, " ", o.Request.Key, " ", o.Answer.Count, " ", Outcome(o.Err)))
		},
	})
	_, _ = s.Next(t.Context(), Request{Tenant: "default", Key: "k", Count: 3, Options: DefaultOptions()})
	_, _ = s.Next(t.Context(), Request{Tenant: "default", Key: "k", Count: -1, Options: DefaultOptions()})
	_ = s.Declare(t.Context(), Declaration{Key: "k"})
	want := []string{"next next k 3 ok", "next next k 0 refused", "declare declare k 0 refused"}
	if !slices.Equal(seen, want) {
		t.Errorf("seen %q, want %q", seen, want)
	}
}

func TestOutcome(t *testing.T) {
	for want, errs := range map[string][]error{
		"ok": {nil}, "exhausted": {&ExhaustedError{}}, "fenced": {&FencedError{}}, "reused": {ErrRequestReused},
		"refused": {ErrInvalid, &MismatchError{}, errors.ErrUnsupported}, "canceled": {context.Canceled},
		"timeout": {fmt.Errorf("etcd: %w", context.DeadlineExceeded)}, "unavailable": {errors.New("connection refused"), fmt.Errorf("%w: x", ErrReset)},
	} {
		for _, err := range errs {
			if got := Outcome(err); got != want {
				t.Errorf("%v is %s, want %s", err, got, want)
			}
		}
		if storecall.Failed(want) != (want == "timeout" || want == "unavailable") {
			t.Errorf("%s: %v", want, storecall.Failed(want))
		}
	}
}
