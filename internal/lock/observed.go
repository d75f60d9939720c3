package lock

import (
	"context"
	"errors"
	"time"
)

// Operation is one call of an Observed store, as it ended.
type Operation struct {
	Name    string  // acquire, renew, release, get or list
	Request Request // of get and list only Tenant and Key, after which a page begins
	Lease   Lease   // the result; the zero value for a list
	Err     error
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
func Observed(s Store, by Observer) Store { return &observed{s, by, canWait(s)} }

type observed struct {
	Store
	by    Observer
	waits bool
}

func (s *observed) before(ctx context.Context, name string, r Request) (context.Context, time.Time) {
	if s.by.Before != nil {
		ctx = s.by.Before(ctx, name, r)
	}
	return ctx, time.Now()
}

// Do implements Store.
func (s *observed) Do(ctx context.Context, r Request) (Lease, error) {
	ctx, began := s.before(ctx, r.Op.String(), r)
	l, err := s.Store.Do(ctx, r)
	s.by.After(ctx, Operation{r.Op.String(), r, l, err, time.Since(began)})
	return l, err
}

// Get implements Store.
func (s *observed) Get(ctx context.Context, tenant, key string) (Lease, error) {
	r := Request{Tenant: tenant, Key: key}
	ctx, began := s.before(ctx, "get", r)
	l, err := s.Store.Get(ctx, tenant, key)
	s.by.After(ctx, Operation{"get", r, l, err, time.Since(began)})
	return l, err
}

// List implements Store.
func (s *observed) List(ctx context.Context, tenant, after string, limit int) ([]Lease, error) {
	r := Request{Tenant: tenant, Key: after}
	ctx, began := s.before(ctx, "list", r)
	page, err := s.Store.List(ctx, tenant, after, limit)
	s.by.After(ctx, Operation{"list", r, Lease{}, err, time.Since(began)})
	return page, err
}

// AcquireWithin implements Store. A refusal to wait is not observed.
func (s *observed) AcquireWithin(ctx context.Context, r Request, wait time.Duration) (Lease, error) {
	if !s.waits {
		return Lease{}, errors.ErrUnsupported
	}
	ctx, began := s.before(ctx, r.Op.String(), r)
	l, err := s.Store.AcquireWithin(ctx, r, wait)
	s.by.After(ctx, Operation{r.Op.String(), r, l, err, time.Since(began)})
	return l, err
}

// Outcome is one word for the result of a request, for metrics, logs and traces:
// ok; held, not_owned, expired, reused, fenced or refused for an answer of the store;
// canceled where the caller gave up; timeout or unavailable without an answer.
func Outcome(err error) string {
	if err == nil {
		return "ok"
	}
	if _, ok := errors.AsType[*HeldError](err); ok {
		return "held"
	}
	if _, ok := errors.AsType[*FencedError](err); ok {
		return "fenced"
	}
	switch {
	case errors.Is(err, ErrRequestReused):
		return "reused"
	case errors.Is(err, ErrNotOwned):
		return "not_owned"
	case errors.Is(err, ErrExpired):
		return "expired"
	case IsAnswer(err), errors.Is(err, ErrOverloaded):
		return "refused"
	case errors.Is(err, context.Canceled), errors.Is(err, ErrClosed):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "unavailable"
}

// Failed reports whether an Outcome is a failure of the store.
func Failed(outcome string) bool { return outcome == "timeout" || outcome == "unavailable" }
