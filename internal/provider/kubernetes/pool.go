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

// note notes a head that was read or written.
func (q *pool) note(object *coordinationv1.Lease) (*head, error) {
	h, err := readHead(object)
	if err != nil {
		return nil, err
	}
	q.head.Store(&h)
	return &h, nil
}

// readHead reads the head by a quorum. It is nil where there is none.
func (p *Provider) readHead(ctx context.Context, q *pool) (*head, error) {
	object, err := p.api.Get(ctx, headName(q.name))
	if kubeconn.IsNotFound(err) {
		q.head.Store(nil)
		q.looked.Store(false)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return q.note(object)
}

// openHead reads the head, makes it where there is none, and opens it where it is closed.
func (p *Provider) openHead(ctx context.Context, q *pool) (*head, error) {
	h, err := p.readHead(ctx, q)
	if err != nil {
		return nil, err
	}
	return p.opened(ctx, q, h)
}

// opened is the head once it is there and open. h is the head that was read, nil where there is
// none.
func (p *Provider) opened(ctx context.Context, q *pool, h *head) (*head, error) {
	for range conflicts {
		var err error
		switch {
		case h == nil:
			h, err = p.writeHead(ctx, q, newHead(q.terms)) // closed
		case h.Closed != "":
			h, err = p.reopen(ctx, q, h)
		default:
			seen, err := p.lookForWitness(ctx, q, h)
			if err != nil || seen == h {
				return seen, err
			}
			h = seen
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, errContended
}

// reopen opens a pool that is closed. The list comes after the closing: a grant that it
// does not show is written later, and its holder then finds the pool closed or reopened.
func (p *Provider) reopen(ctx context.Context, q *pool, h *head) (*head, error) {
	slots, err := p.slots(ctx, q, kubeconn.ListOptions{})
	if err != nil {
		return nil, err
	}
	now, _ := p.now()
	return p.writeHead(ctx, q, h.opened(slots, now, q.terms.LongestMS(), q.terms.Term.Milliseconds()))
}

// writeHead makes the head, or replaces the read one. Where there is another one by now, it
// returns that one instead.
func (p *Provider) writeHead(ctx context.Context, q *pool, h head) (*head, error) {
	object, err := p.put(ctx, h.read, h.object(q.name))
	if kubeconn.IsConflict(err) {
		return p.readHead(ctx, q)
	}
	if err != nil {
		return nil, err
	}
	return q.note(object)
}

// put makes the object, or replaces the read one.
func (p *Provider) put(ctx context.Context, read, object *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if read == nil {
		return p.api.Create(ctx, object)
	}
	return p.api.Update(ctx, object)
}

// closeHead closes the pool, and opens it again by a list of that moment. A pool that is closed
// already is opened first: the earlier reason is not dropped.
func (p *Provider) closeHead(ctx context.Context, q *pool, why string, bitSeq int) (*head, error) {
	for range conflicts {
		h, err := p.openHead(ctx, q)
		if err != nil {
			return nil, err
		}
		to := h.closing(why)
		to.NextBitSeq = bitSeq
		h, err = p.writeHead(ctx, q, to)
		if err != nil {
			return nil, err
		}
		if h != nil && h.Nonce == to.Nonce {
			return p.opened(ctx, q, h)
		}
	}
	return nil, errContended
}

// lookForWitness closes a pool without its witness: its opener lists the slots that are left. It
// looks once, and again when an object of this process's was found missing.
func (p *Provider) lookForWitness(ctx context.Context, q *pool, h *head) (*head, error) {
	if q.looked.Load() || h.Witness == nil {
		return h, nil
	}
	s, err := p.readSlot(ctx, q, *h.Witness)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return p.writeHead(ctx, q, h.closing(closedGone))
	}
	q.looked.Store(true)
	return h, nil
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

// raise raises the head's bound, so that a grant may end at end. The error is errReplaced
// where the pool was closed since h was read: it may have another layout by now.
func (p *Provider) raise(ctx context.Context, q *pool, h *head, end int64) (*head, error) {
	for range conflicts {
		to, changed := h.raised(end, q.terms.Term.Milliseconds(), q.terms.LongestMS())
		if !changed {
			return h, nil
		}
		next, err := p.writeHead(ctx, q, to)
		if err == nil && (next == nil || !next.same(*h)) {
			err = errReplaced
		}
		if err != nil {
			return nil, err
		}
		h = next
	}
	return nil, errContended
}
