package sequence

import (
	"context"
	"errors"
	"time"
)

// Operation is one call of an Observed store, as it ended.
type Operation struct {
	Name    string        // next or declare
	Request Request       // of declare only Tenant, Key and Options
	Values  Range         // what came of a next
	Err     error         // likewise
	Took    time.Duration // from before the call to after it
}

// Observer sees the operations of an Observed store. Its functions return at once.
type Observer struct {
	// Before returns the context that the operation is carried out with. Optional.
	Before func(ctx context.Context, name string, r Request) context.Context
	// After has that context.
	After func(ctx context.Context, o Operation)
}

// Observed returns the store with an observer.
func Observed(s Store, by Observer) Store { return &observed{s, by} }

type observed struct {
	Store
	by Observer
}

func (s *observed) before(ctx context.Context, name string, r Request) (context.Context, time.Time) {
	if s.by.Before != nil {
		ctx = s.by.Before(ctx, name, r)
	}
	return ctx, time.Now()
}

// Next implements Store.
func (s *observed) Next(ctx context.Context, r Request) (Range, error) {
	ctx, began := s.before(ctx, "next", r)
	values, err := s.Store.Next(ctx, r)
	s.by.After(ctx, Operation{"next", r, values, err, time.Since(began)})
	return values, err
}

// Declare implements Store.
func (s *observed) Declare(ctx context.Context, d Declaration) error {
	r := Request{Tenant: d.Tenant, Key: d.Key, Options: d.Options}
	ctx, began := s.before(ctx, "declare", r)
	err := s.Store.Declare(ctx, d)
	s.by.After(ctx, Operation{"declare", r, Range{}, err, time.Since(began)})
	return err
}

// Outcome is one word for what became of a request, for metrics, logs and traces:
// ok; exhausted, reused, fenced or refused where the store has answered; canceled
// where the caller did not wait for that; timeout or unavailable where it did, in
// vain.
func Outcome(err error) string {
	if err == nil {
		return "ok"
	}
	if _, ok := errors.AsType[*ExhaustedError](err); ok {
		return "exhausted"
	}
	if _, ok := errors.AsType[*FencedError](err); ok {
		return "fenced"
	}
	switch {
	case errors.Is(err, ErrRequestReused):
		return "reused"
	case IsAnswer(err), errors.Is(err, errors.ErrUnsupported):
		return "refused"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "unavailable"
}

// Failed reports whether an Outcome says something about the store: it did not do
// its work.
func Failed(outcome string) bool { return outcome == "timeout" || outcome == "unavailable" }
