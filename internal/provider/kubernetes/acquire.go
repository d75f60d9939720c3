package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	t := p.cfg.Services.Of(req.Service)
	q := p.pools[t.Pool]
	known := &asked{}
	if req.RequestID != "" {
		now, _ := p.now()
		a, leave, err := q.enter(ctx, requestLabel(req.Service, req.RequestID), now)
		if err != nil {
			return nil, err
		}
		defer leave()
		known = a
	}
	for range conflicts {
		h, found, err := p.acquire(ctx, q, t, req, known)
		if errors.Is(err, errReplaced) {
			continue
		}
		if err != nil && len(known.attempts) > 0 {
			// A grant may be written. A BusyError would say that there is none, and the
			// request would not be repeated.
			return nil, err
		}
		if err != nil {
			return nil, p.failure(err)
		}
		slices.SortFunc(found, func(a, b slot) int { return cmp.Compare(a.ID, b.ID) }) // as a repetition finds them
		known.answers(found)
		leases := make([]lease.Lease, len(found))
		for i, s := range found {
			leases[i] = s.lease()
			leases[i].Secret = h.secret(s.Nonce)
		}
		return leases, nil
	}
	return nil, p.failure(errContended)
}

// errReplaced: the pool was closed after the grants were written. They were given back
// unused.
var errReplaced = errors.New("the pool was closed meanwhile")

// acquire grants leases, or finds those that were granted for the request before.
func (p *Provider) acquire(ctx context.Context, q *pool, t provider.Terms, req provider.AcquireRequest, known *asked) (*headObject, []slot, error) {
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
	if known.answered {
		return nil, nil, provider.ErrConflict
	}
	if err := errors.Join(checkClocks(offset, t), t.CheckClock(now)); err != nil {
		return nil, nil, err
	}
	s := &search{Provider: p, pool: q, head: h, terms: t, nowMS: now, req: req, asked: known}
	if err := s.run(ctx); err != nil {
		if errors.Is(err, errReplaced) {
			p.undo(ctx, s)
		}
		return nil, nil, err
	}
	return p.confirm(ctx, s)
}

// before reads the head, and what was granted for the request before.
func (p *Provider) before(ctx context.Context, q *pool, req provider.AcquireRequest, known *asked) (*headObject, []slot, error) {
	if len(known.attempts) == 0 && known.answered {
		return nil, nil, provider.ErrConflict
	}
	if len(known.attempts) == 0 && isElsewhere(req) {
		h, found, err := p.readRequest(ctx, q, req)
		if err != nil {
			return nil, nil, err
		}
		h, err = p.opened(ctx, q, h)
		return h, found, err
	}
	h := q.known()
	if now, _ := p.now(); h == nil || h.Closed != "" || !q.hasLooked() || len(known.attempts) > 0 || !p.isDated() || h.fence(now) != nil {
		var err error
		if h, err = p.openHead(ctx, q); err != nil {
			return nil, nil, err
		}
	}
	var found []slot
	for _, a := range known.attempts {
		s, _, err := p.readSlot(ctx, q, a.id)
		if err != nil {
			return nil, nil, err
		}
		if s != nil && s.Nonce == a.nonce {
			found = append(found, *s)
		} else if known.answered {
			return nil, nil, provider.ErrConflict
		}
	}
	return h, found, nil
}

// isElsewhere reports whether another process may have carried out the request before: then
// the objects say what came of it. This process remembers its own requests.
func isElsewhere(req provider.AcquireRequest) bool {
	return req.RequestID != "" && req.Client != provider.OwnClient
}

// readRequest reads the head, nil where there is none, and all grants of the request, in
// one list.
func (p *Provider) readRequest(ctx context.Context, q *pool, req provider.AcquireRequest) (*headObject, []slot, error) {
	label := requestLabel(req.Service, req.RequestID)
	objects, err := p.api.List(ctx, kubeconn.ListOptions{
		Selector: fmt.Sprintf("%s=%s,%s in (%s,%s)", labelPool, q.name, labelRequest, label, isHead),
	})
	if err != nil {
		return nil, nil, err
	}
	var h *headObject
	var found []slot
	for i := range objects {
		object := &objects[i]
		if object.Name == headName(q.name) {
			if h, err = q.note(object); err != nil {
				return nil, nil, err
			}
			continue
		}
		if id, ok := slotOf(q.name, object.Name); ok {
			if s := readSlot(object, id); s.Nonce != "" && s.Request == label {
				found = append(found, s)
			}
		}
	}
	if h == nil { // there is none, or somebody has removed its labels
		h, err = p.readHead(ctx, q)
	}
	return h, found, err
}

// confirm reads the head after the grants were written: only in a pool that has not been
// closed meanwhile they count.
func (p *Provider) confirm(ctx context.Context, s *search) (*headObject, []slot, error) {
	h, err := p.readHead(ctx, s.pool)
	if err != nil {
		return nil, nil, err
	}
	if h == nil || !h.same(s.head.head) {
		p.undo(ctx, s)
		return nil, nil, errReplaced
	}
	if h.Witness == nil {
		to := h.written()
		to.Witness = pointer(s.got[0].ID)
		// Another holder may do it as well, or the next one here.
		if object, err := p.api.Update(ctx, to.object(s.pool.name, h.object)); err == nil {
			_, _ = s.pool.note(object)
		}
	}
	found := make([]slot, len(s.got))
	for i, g := range s.got {
		found[i] = g.slot
	}
	return h, found, nil
}

// undo gives back grants that were not used. If that fails, the machine ID stays taken until
// the grant's end.
func (p *Provider) undo(ctx context.Context, s *search) {
	for _, g := range s.got {
		s.asked.failed(g.slot)
		unused := g.slot.unused()
		if _, err := p.api.Update(ctx, unused.object(s.pool.name, g.object)); err == nil {
			s.pool.setTaken(g.ID, unused.End)
		}
	}
}
