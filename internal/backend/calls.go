package backend

import (
	"context"
	"fmt"

	"github.com/kazahana/kazahana/internal/record"
)

// callsAtOnce is how many calls of a store are under way at a time, beside those for the upkeep
// of locks: as many as a store in a file writes with one commit, and few enough that a server
// with slow writes, such as etcd, is not asked for more than it takes.
const callsAtOnce = 256

// boundedCalls is a record store with so many calls under way. Further ones wait, as long as
// their time lasts. Calls for the upkeep of locks do not: their number is bounded where they
// come from, and a holder that is late loses its lock.
type boundedCalls struct {
	record.Store
	under chan struct{} // an element for each call under way
}

func newBoundedCalls(s record.Store) *boundedCalls {
	return &boundedCalls{s, make(chan struct{}, callsAtOnce)}
}

func (s *boundedCalls) enter(ctx context.Context) (leave func(), err error) {
	if record.IsUpkeep(ctx) {
		return func() {}, nil
	}
	select {
	case s.under <- struct{}{}:
		return func() { <-s.under }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", record.ErrCrowded, context.Cause(ctx))
	}
}

// Change implements record.Store.
func (s *boundedCalls) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	return s.Store.Change(ctx, ask, rule)
}

// Read implements record.Store.
func (s *boundedCalls) Read(ctx context.Context, ask record.Ask) (record.View, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return record.View{}, err
	}
	defer leave()
	return s.Store.Read(ctx, ask)
}

// List implements record.Store.
func (s *boundedCalls) List(ctx context.Context, prefix, after string, limit int) ([]record.Head, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.Store.List(ctx, prefix, after, limit)
}
