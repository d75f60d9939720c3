// Package storecall is how the calls of stores of locks and sequences are observed.
package storecall

import (
	"context"
	"errors"
	"time"
)

// Call is a call of a store of locks or sequences, as it ended: a request R and its answer A.
type Call[R, A any] struct {
	Name    string
	Request R
	Answer  A // the zero value where there is none
	Err     error
	Took    time.Duration // from before the call to after it
}

// Observer sees the calls of a store. Its functions return at once.
type Observer[R, A any] struct {
	// Before returns the context that the call is carried out with. Optional.
	Before func(ctx context.Context, name string, r R) context.Context
	// After has that context.
	After func(ctx context.Context, c Call[R, A])
}

// Observe carries out a call of that name.
func (by Observer[R, A]) Observe(ctx context.Context, name string, r R, carryOut func(context.Context) (A, error)) (A, error) {
	if by.Before != nil {
		ctx = by.Before(ctx, name, r)
	}
	began := time.Now()
	a, err := carryOut(ctx)
	by.After(ctx, Call[R, A]{name, r, a, err, time.Since(began)})
	return a, err
}

// Failure is one word for an error that is no answer of a store: canceled where the caller did not
// wait for one, else timeout or unavailable.
func Failure(err error) string {
	switch {
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "unavailable"
}

// Failed reports whether the outcome of a call is that the store did not do its work.
func Failed(outcome string) bool { return outcome == "timeout" || outcome == "unavailable" }
