package kubernetes

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// readSlot reads the slot of a machine ID by a quorum, nil where it has no object.
func (p *Provider) readSlot(ctx context.Context, q *pool, id int64) (*slot, error) {
	object, err := p.api.Get(ctx, slotName(q.name, id))
	if kubeconn.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := readSlot(object, id)
	return &s, nil
}

// writeSlot makes the object of the slot, or replaces the read one.
func (p *Provider) writeSlot(ctx context.Context, q *pool, s slot) (*slot, error) {
	object, err := p.put(ctx, s.read, s.object(q.name))
	if err != nil {
		return nil, err
	}
	written := readSlot(object, s.Lease.ID)
	return &written, nil
}

// Release implements provider.Provider.
func (p *Provider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	q := p.pools[p.cfg.Services.Of(req.Service).Pool]
	for range conflicts {
		s, err := p.readSlot(ctx, q, req.ID)
		h := q.head.Load() // it has the key of the secret if it allowed the grant
		if err == nil && s != nil && (h == nil || h.UID != s.Head) {
			h, err = p.readHead(ctx, q)
		}
		if err != nil {
			return provider.NotSent(p.failure(err))
		}
		if s == nil || h == nil {
			return provider.ErrNotFound
		}
		now, _ := p.now()
		after, changed, err := h.released(s, req, now)
		if err != nil || !changed {
			return err
		}
		p.releasing()
		_, err = p.writeSlot(ctx, q, after)
		if err == nil {
			return nil
		}
		if !kubeconn.IsConflict(err) {
			return p.released(ctx, q, after, err)
		}
	}
	return provider.NotSent(errContended)
}

// released asks what became of a release after a lost answer, or an error.
func (p *Provider) released(ctx context.Context, q *pool, after slot, failed error) error {
	if kubeconn.IsSettled(failed) || errors.Is(failed, provider.ErrNotSent) {
		return p.failure(failed)
	}
	if s, err := p.readSlot(ctx, q, after.Lease.ID); err == nil && s != nil && s.Nonce == after.Nonce && s.Released {
		return nil
	}
	return failed
}

// Extend implements provider.Provider.
func (p *Provider) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	t := p.cfg.Services.Of(req.Service)
	q := p.pools[t.Pool]
	for range conflicts {
		longer, err := p.extend(ctx, q, t, req)
		if !kubeconn.IsConflict(err) && !errors.Is(err, errReplaced) {
			return longer, p.failure(err)
		}
	}
	return lease.Lease{}, errContended
}

// extend extends a lease, if slot and head stay as they were read.
func (p *Provider) extend(ctx context.Context, q *pool, t provider.Terms, req provider.ExtendRequest) (lease.Lease, error) {
	s, err := p.readSlot(ctx, q, req.ID)
	if err != nil {
		return lease.Lease{}, err
	}
	if s == nil {
		return lease.Lease{}, provider.ErrNotFound
	}
	h, err := p.changeHead(ctx, q, asItIs) // who has closed the pool may have listed the slots already
	if err != nil {
		return lease.Lease{}, err
	}
	now, _ := p.now()
	if fence := h.fence(now); fence != nil {
		return lease.Lease{}, fence
	}
	after, changed, err := h.extended(s, t, req, now)
	if err != nil || !changed {
		return after.Lease, err
	}
	if h, err = p.raise(ctx, q, h, after.End); err != nil {
		return lease.Lease{}, err
	}
	written, err := p.writeSlot(ctx, q, after)
	if err != nil {
		return lease.Lease{}, err
	}
	// Where it does not count, the slot is taken for longer. It is not written back: a repeated request
	// may have been answered with it.
	_, err = p.confirm(ctx, q, h)
	return written.Lease, err
}

// verifying is how many claims are asked about at a time.
const verifying = 8

// Verify implements provider.Provider.
func (p *Provider) Verify(ctx context.Context, service string, claims []provider.Claim) ([]int, error) {
	q := p.pools[p.cfg.Services.Of(service).Pool]
	slots := make([]*slot, len(claims))
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(verifying)
	for i, c := range claims {
		group.Go(func() (err error) {
			slots[i], err = p.readSlot(inner, q, c.ID)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, p.failure(err)
	}
	if h := q.head.Load(); h != nil && len(h.lost(claims, slots, false)) == 0 {
		return nil, nil
	}
	// The head may have changed since it was read: its key, and whether it is fenced.
	h, err := p.readHead(ctx, q)
	if err != nil {
		return nil, p.failure(err)
	}
	if slices.Contains(slots, nil) {
		q.looked.Store(false) // others may be missing as well
	}
	now, _ := p.now()
	if h == nil {
		h = &head{}
	}
	return h.lost(claims, slots, h.fence(now) != nil), nil
}
