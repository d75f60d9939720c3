package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// conflicts is how often a change is tried that others were before.
const conflicts = 16

var errContended = errors.New("too many others change the pool at the same time")

// Acquire implements provider.Provider.
func (p *Provider) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	t := p.cfg.Services.Of(req.Service)
	q := p.pools[t.Pool]
	now, _ := p.now()
	known, leave, err := q.enter(ctx, req, now)
	if err != nil {
		return nil, err
	}
	defer leave()
	for range conflicts {
		h, found, err := p.acquire(ctx, q, t, req, known)
		if errors.Is(err, errReplaced) {
			continue
		}
		if err != nil {
			return nil, p.failure(err)
		}
		slices.SortFunc(found, func(a, b slot) int { return cmp.Compare(a.Lease.ID, b.Lease.ID) }) // as a repetition finds them
		known.grants = found
		leases := make([]lease.Lease, len(found))
		for i, s := range found {
			leases[i] = s.Lease
			leases[i].Secret = h.secret(s.Nonce)
		}
		return leases, nil
	}
	return nil, p.failure(errContended)
}

// errReplaced: the pool was closed after slots were written. They are given back unused.
var errReplaced = errors.New("the pool was closed meanwhile")

// acquire grants leases, or finds the leases that an earlier call granted for the request.
func (p *Provider) acquire(ctx context.Context, q *pool, t provider.Terms, req provider.AcquireRequest, known *asked) (*head, []slot, error) {
	h, found, err := p.before(ctx, q, req, known)
	if err != nil {
		return nil, nil, err
	}
	now, offset := p.now()
	// A repeated request is no exception: its lease may have been given back since, and
	// granted to another.
	if fence := h.fence(now); fence != nil {
		return nil, nil, fence
	}
	if err := h.known(t); err != nil {
		return nil, nil, err
	}
	if len(found) > 0 {
		return h, found, h.living(found, now)
	}
	if err := errors.Join(checkClocks(offset, t), t.CheckClock(now)); err != nil {
		return nil, nil, err
	}
	s := &search{Provider: p, pool: q, head: h, terms: t, nowMS: now, req: req, asked: known, ends: map[int64]int64{}}
	if err = s.run(ctx); err == nil {
		h, err = p.confirm(ctx, q, s.head)
	}
	if errors.Is(err, errReplaced) {
		p.undo(ctx, s)
	}
	if err != nil {
		return nil, nil, err
	}
	if h.Witness == nil {
		to := h.written()
		to.Witness = pointer(s.got[0].Lease.ID)
		_, _ = p.api.Update(ctx, to.object(q.name)) // another holder may do it as well, or the next one here
	}
	return h, s.got, nil
}

// before reads the earlier grants for the request, and the head. The head comes last: a write
// of an earlier call may have been under way, and counts if the head was read after it.
func (p *Provider) before(ctx context.Context, q *pool, req provider.AcquireRequest, known *asked) (*head, []slot, error) {
	found, err := p.found(ctx, q, req, known)
	if err != nil {
		return nil, nil, err
	}
	h, err := p.changeHead(ctx, q, asItIs)
	return h, found, err
}

// found returns the earlier grants for the request. This process remembers its own requests;
// where another process may have carried one out, the objects say what came of it.
func (p *Provider) found(ctx context.Context, q *pool, req provider.AcquireRequest, known *asked) (found []slot, err error) {
	if len(known.grants) == 0 && repeatedElsewhere(req) {
		label := requestLabel(req.Service, req.RequestID)
		found, err = p.slots(ctx, q, kubeconn.ListOptions{Selector: labelRequest + "=" + label})
		return slices.DeleteFunc(found, func(s slot) bool { return s.Request != label }), err
	}
	for _, g := range known.grants {
		s, err := p.readSlot(ctx, q, g.Lease.ID)
		if err != nil {
			return nil, err
		}
		if s != nil && s.Nonce == g.Nonce {
			found = append(found, *s)
		}
	}
	return found, nil
}

// confirm reads the head after slots were written by an earlier one: what was written counts only in
// a pool that was not closed meanwhile. Else the error is errReplaced.
func (p *Provider) confirm(ctx context.Context, q *pool, earlier *head) (*head, error) {
	h, err := p.readHead(ctx, q)
	if err == nil && (h == nil || !h.same(*earlier)) {
		err = errReplaced
	}
	return h, err
}

// undo gives back grants that were not used. If that fails, the machine ID stays taken until
// the grant's end. So does one that another lease server may have found by its request, and
// answered with; no later repetition finds it.
func (p *Provider) undo(ctx context.Context, s *search) {
	for _, g := range s.got {
		s.asked.drop(g)
		after := g.unused()
		if repeatedElsewhere(s.req) {
			after = g
			after.Request = ""
		}
		_, _ = p.writeSlot(ctx, s.pool, after)
	}
}

// repeatedElsewhere reports whether another process may get the same request: a lease server does.
func repeatedElsewhere(req provider.AcquireRequest) bool {
	return req.RequestID != "" && req.Client != provider.OwnClient
}
