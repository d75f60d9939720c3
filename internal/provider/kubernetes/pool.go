package kubernetes

import (
	"context"
	"sync"
	"sync/atomic"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/provider"
)

// pool is this process's knowledge of a pool. All of it may be out of date.
type pool struct {
	name   string
	terms  provider.Terms       // of its services: the terms with the longest leases
	head   atomic.Pointer[head] // nil = not read yet, or gone
	looked atomic.Bool          // a slot was seen: not all are gone

	mu    sync.Mutex
	asked map[string]*asked // by requestLabel
}

// newPool knows nothing.
func newPool(t provider.Terms) *pool {
	return &pool{name: t.Pool, terms: t, asked: map[string]*asked{}}
}

// noted notes the head that was read or written. It is nil where there is none.
func (q *pool) noted(object *coordinationv1.Lease, err error) (*head, error) {
	if kubeconn.IsNotFound(err) {
		q.head.Store(nil)
		q.looked.Store(false)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	h, err := readHead(object)
	if err != nil {
		return nil, err
	}
	q.head.Store(&h)
	return &h, nil
}

// readHead reads the head by a quorum.
func (p *Provider) readHead(ctx context.Context, q *pool) (*head, error) {
	return q.noted(p.api.Get(ctx, headName(q.name)))
}

// asItIs is the rule that leaves an open head as it is.
func asItIs(h head) (head, bool) { return h, false }

// changeHead reads the head, and writes it as the rule wants it.
func (p *Provider) changeHead(ctx context.Context, q *pool, rule func(head) (head, bool)) (*head, error) {
	h, err := p.readHead(ctx, q)
	if err != nil {
		return nil, err
	}
	return p.change(ctx, q, h, rule)
}

// change writes the open head as the rule wants it, and returns it open. The rule reports false
// where the head is as it should be. h is the head that was read, nil where there is none.
func (p *Provider) change(ctx context.Context, q *pool, h *head, rule func(head) (head, bool)) (*head, error) {
	done := false // what the rule wants was written
	for range conflicts {
		to, changes, err := p.opening(ctx, q, h)
		if err != nil {
			return nil, err
		}
		ruled := !changes && !done
		if ruled {
			to, changes = rule(*h)
		}
		if !changes {
			return h, nil
		}
		if h, err = p.writeHead(ctx, q, to); err != nil {
			return nil, err
		}
		done = done || ruled && h != nil && h.Nonce == to.Nonce
	}
	return nil, errContended
}

// opening is what the head must become before it is one of an open pool; false where it is one.
func (p *Provider) opening(ctx context.Context, q *pool, h *head) (to head, changes bool, err error) {
	switch {
	case h == nil:
		return newHead(q.terms), true, nil
	case h.Closed != "":
		// The list comes after the closing: a grant that it does not show is written later, and its
		// holder then finds the pool closed or reopened.
		slots, err := p.slots(ctx, q, kubeconn.ListOptions{})
		now, _ := p.now()
		return h.opened(slots, now, q.terms), true, err
	case h.Witness == nil || q.looked.Load():
		return *h, false, nil
	}
	// Without its witness the pool is closed: its opener lists the slots that are left. A process
	// looks once, and again when an object of its own was found missing.
	s, err := p.readSlot(ctx, q, *h.Witness)
	q.looked.Store(s != nil)
	return h.closing(closedGone), s == nil, err
}

// writeHead makes the head, or replaces the read one. Where there is another one by now, it
// returns that one instead.
func (p *Provider) writeHead(ctx context.Context, q *pool, h head) (*head, error) {
	object, err := p.put(ctx, h.read, h.object(q.name))
	if kubeconn.IsConflict(err) {
		return p.readHead(ctx, q)
	}
	if err != nil { // also where the namespace is gone
		return nil, err
	}
	return q.noted(object, nil)
}

// put makes the object, or replaces the read one.
func (p *Provider) put(ctx context.Context, read, object *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if read == nil {
		return p.api.Create(ctx, object)
	}
	return p.api.Update(ctx, object)
}

// raise raises the head's bound, so that a grant may end at end. The error is errReplaced
// where the pool was closed since h was read: it may have another layout by now.
func (p *Provider) raise(ctx context.Context, q *pool, h *head, end int64) (*head, error) {
	next, err := p.change(ctx, q, h, func(h head) (head, bool) { return h.raised(end, q.terms) })
	if err == nil && !next.same(*h) {
		return nil, errReplaced
	}
	return next, err
}

// slots lists the slots of the pool, with any labels unless the options select some.
func (p *Provider) slots(ctx context.Context, q *pool, o kubeconn.ListOptions) ([]slot, error) {
	objects, err := p.api.List(ctx, o)
	if err != nil {
		return nil, err
	}
	var slots []slot
	for i := range objects {
		if id, ok := slotOf(q.name, objects[i].Name); ok {
			slots = append(slots, readSlot(&objects[i], id))
		}
	}
	return slots, nil
}
