package backend

import (
	"context"
	"fmt"

	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/turnstile"
)

// atOnce is how many calls of each kind are under way at a time, at most. Stores that write
// several changes at once write up to so many.
const atOnce = 256

// fairRecords is a record store with queues before it, which keep the queue to the store short,
// and the callers in it equal. Each store carries out some calls at a time; where there are
// more, the callers (record.By) get their turn one after the other, however many calls each has
// made. Urgent calls have a queue of their own: many who want a lock do not keep others from
// renewing theirs.
type fairRecords struct {
	record.Store
	urgent, other *turnstile.Turnstile[string]
}

// newFair returns the store with queues before it. room is how many calls the store carries out at
// a time without keeping the next one waiting for long; nil: as many as come. Urgent calls wait
// for no more than those.
func newFair(s record.Store, room func() int) *fairRecords {
	most := func() int { return atOnce }
	if room == nil {
		room = most
	}
	return &fairRecords{s, turnstile.Varying[string](most), turnstile.Varying[string](func() int { return min(room(), atOnce) })}
}

func (s *fairRecords) enter(ctx context.Context) (entered *turnstile.Turnstile[string], err error) {
	q := s.other
	if record.IsUrgent(ctx) {
		q = s.urgent
	}
	if err := q.Enter(ctx, record.Caller(ctx)); err != nil {
		return nil, fmt.Errorf("%w: %w", record.ErrCrowded, err)
	}
	return q, nil
}

// Change implements record.Store.
func (s *fairRecords) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	q, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer q.Leave()
	return s.Store.Change(ctx, ask, rule)
}

// Read implements record.Store.
func (s *fairRecords) Read(ctx context.Context, ask record.Ask) (record.View, error) {
	q, err := s.enter(ctx)
	if err != nil {
		return record.View{}, err
	}
	defer q.Leave()
	return s.Store.Read(ctx, ask)
}

// List implements record.Store.
func (s *fairRecords) List(ctx context.Context, prefix, after string, limit int) ([]record.Head, error) {
	q, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer q.Leave()
	return s.Store.List(ctx, prefix, after, limit)
}
