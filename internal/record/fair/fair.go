// Package fair keeps the queue to a record store short, and the callers in it equal. Each
// store carries out some calls at a time; where there are more, the callers (record.By) get
// their turn one after the other, however many calls each has made. Urgent calls have a
// queue of their own: many who want a lock do not keep others from renewing theirs.
package fair

import (
	"container/list"
	"context"
	"fmt"
	"sync"

	"github.com/kazahana/kazahana/internal/record"
)

// atOnce is how many calls of each kind are under way at a time. Stores that write several
// changes at once write up to so many.
const atOnce = 256

// Store is a record store with queues before it.
type Store struct {
	record.Store
	urgent, other *queue
}

// New returns the store with queues before it.
func New(s record.Store) *Store { return &Store{s, newQueue(atOnce), newQueue(atOnce)} }

func (s *Store) enter(ctx context.Context) (leave func(), err error) {
	q := s.other
	if record.IsUrgent(ctx) {
		q = s.urgent
	}
	return q.leave, q.enter(ctx)
}

// Change implements record.Store.
func (s *Store) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	return s.Store.Change(ctx, ask, rule)
}

// Read implements record.Store.
func (s *Store) Read(ctx context.Context, ask record.Ask) (record.View, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return record.View{}, err
	}
	defer leave()
	return s.Store.Read(ctx, ask)
}

// List implements record.Store.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]record.Head, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.Store.List(ctx, prefix, after, limit)
}

// queue lets some calls through at a time.
type queue struct {
	mu      sync.Mutex // guards all below
	free    int        // with any, no call waits
	callers list.List  // of *caller, the next one first
	byName  map[string]*list.Element
}

// caller is one that waits with at least one call.
type caller struct {
	name  string
	calls list.List // of chan struct{}, closed when the call's turn has come
}

func newQueue(atOnce int) *queue { return &queue{free: atOnce, byName: map[string]*list.Element{}} }

// enter waits for the call's turn, which ends with leave.
func (q *queue) enter(ctx context.Context) error {
	q.mu.Lock()
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return nil
	}
	name := record.Caller(ctx)
	at := q.byName[name]
	if at == nil {
		at = q.callers.PushBack(&caller{name: name})
		q.byName[name] = at
	}
	c, turn := at.Value.(*caller), make(chan struct{})
	call := c.calls.PushBack(turn)
	q.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-turn:
		return nil // the store says itself that the context is done
	default:
	}
	c.calls.Remove(call)
	q.settle(at)
	return fmt.Errorf("%w: %w", record.ErrCrowded, context.Cause(ctx))
}

// leave gives the turn to the next caller.
func (q *queue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := q.callers.Front()
	if at == nil {
		q.free++
		return
	}
	c := at.Value.(*caller)
	close(c.calls.Remove(c.calls.Front()).(chan struct{}))
	q.callers.MoveToBack(at)
	q.settle(at)
}

// settle drops a caller that waits no more. mu is held.
func (q *queue) settle(at *list.Element) {
	if c := at.Value.(*caller); c.calls.Len() == 0 {
		q.callers.Remove(at)
		delete(q.byName, c.name)
	}
}
