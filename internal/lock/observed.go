package lock

import (
	"context"
	"errors"

	"github.com/kazahana/kazahana/internal/storecall"
)

// Operation is one call of an Observed store: acquire, renew, release, get or list. The request
// of a get and of a list has only Tenant and Key, after which a page begins. A list has no Answer.
type Operation = storecall.Call[Request, Lease]

// Observer sees the operations of an Observed store.
type Observer = storecall.Observer[Request, Lease]

// Observed returns the store with an observer.
func Observed(s Store, by Observer) Store { return &observed{s, by} }

type observed struct {
	Store
	by Observer
}

// Do implements Store.
func (s *observed) Do(ctx context.Context, r Request) (Lease, error) {
	return s.by.Observe(ctx, r.Op.String(), r, func(ctx context.Context) (Lease, error) { return s.Store.Do(ctx, r) })
}

// Get implements Store.
func (s *observed) Get(ctx context.Context, tenant, key string) (Lease, error) {
	return s.by.Observe(ctx, "get", Request{Tenant: tenant, Key: key}, func(ctx context.Context) (Lease, error) {
		return s.Store.Get(ctx, tenant, key)
	})
}

// List implements Store.
func (s *observed) List(ctx context.Context, tenant, after string, limit int) (page []Lease, err error) {
	_, err = s.by.Observe(ctx, "list", Request{Tenant: tenant, Key: after}, func(ctx context.Context) (none Lease, err error) {
		page, err = s.Store.List(ctx, tenant, after, limit)
		return none, err
	})
	return page, err
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
	case errors.Is(err, ErrClosed):
		return "canceled"
	}
	return storecall.Failure(err)
}
