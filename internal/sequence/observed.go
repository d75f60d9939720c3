package sequence

import (
	"context"
	"errors"

	"github.com/kazahana/kazahana/internal/storecall"
)

// Operation is one call of an Observed store: next, or declare. The request of a declare has only
// Tenant, Key and Options, and no Answer.
type Operation = storecall.Call[Request, Range]

// Observer sees the operations of an Observed store.
type Observer = storecall.Observer[Request, Range]

// Observed returns the store with an observer.
func Observed(s Store, by Observer) Store { return &observed{s, by} }

type observed struct {
	Store
	by Observer
}

// Next implements Store.
func (s *observed) Next(ctx context.Context, r Request) (Range, error) {
	return s.by.Observe(ctx, "next", r, func(ctx context.Context) (Range, error) { return s.Store.Next(ctx, r) })
}

// Declare implements Store.
func (s *observed) Declare(ctx context.Context, d Declaration) error {
	r := Request{Tenant: d.Tenant, Key: d.Key, Options: d.Options}
	_, err := s.by.Observe(ctx, "declare", r, func(ctx context.Context) (Range, error) { return Range{}, s.Store.Declare(ctx, d) })
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
	}
	return storecall.Failure(err)
}
