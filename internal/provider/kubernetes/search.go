package kubernetes

import (
	"context"
	"math/rand/v2"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/provider"
)

// misses is how many taken machine IDs a search meets before it lists the pool.
const misses = 8

// search looks for free machine IDs, and grants them.
type search struct {
	*Provider
	pool  *pool
	head  *headObject
	terms provider.Terms
	nowMS int64 // the time that no fence holds back: grants begin then, whatever the clock shows by now
	req   provider.AcquireRequest
	asked *asked
	got   []got
}

// got is a grant that was written.
type got struct {
	slot
	object *coordinationv1.Lease
}

// run grants as many leases as are wanted, or as are free. Its error means that there is
// none at all, or that the outcome of one is not known.
func (s *search) run(ctx context.Context) error {
	for missed := 0; missed < misses && !s.done(); {
		id, ok := s.guess()
		if !ok {
			break
		}
		granted, err := s.try(ctx, id, nil)
		if err != nil {
			return err
		}
		if !granted {
			missed++
		}
	}
	var next int64
	// The server's cache costs its store nothing. That all are taken needs a list that
	// holds what was released a moment ago.
	for _, cached := range []bool{true, false} {
		if s.done() {
			return nil
		}
		var err error
		if next, err = s.listed(ctx, cached); err != nil {
			return err
		}
	}
	if len(s.got) == 0 {
		return &provider.FullError{Pool: s.pool.name, Slots: s.terms.Range().Count(), NextEndMS: next}
	}
	return nil
}

// done reports whether there are as many leases as are wanted.
func (s *search) done() bool { return len(s.got) >= s.terms.LeaseCount(s.req.ThroughputPerMS) }

// guesses is how often a machine ID is drawn until one comes that was never seen taken.
const guesses = 16

// guess draws a machine ID at random that is not known to be taken.
func (s *search) guess() (int64, bool) {
	ids := s.terms.Range()
	for range guesses {
		if id := ids.Low + rand.Int64N(ids.Count()); s.pool.takenUntil(id) <= s.nowMS {
			return id, true
		}
	}
	return 0, false
}

// listed grants what a list of the pool shows to be free, in random order. It returns when
// the next machine ID is free, 0 if that is not known.
func (s *search) listed(ctx context.Context, cached bool) (next int64, err error) {
	objects, err := s.api.List(ctx, kubeconn.ListOptions{Selector: slotsOf(s.pool.name), Cached: cached})
	if err != nil {
		return 0, err
	}
	ids := s.terms.Range()
	there := map[int64]*coordinationv1.Lease{}
	for i := range objects {
		if id, ok := slotOf(s.pool.name, objects[i].Name); ok && ids.Contains(id) {
			there[id] = &objects[i]
		}
	}
	free := s.absent(there)
	for id, object := range there {
		end := readSlot(object, id).End
		s.pool.setTaken(id, end)
		if end <= s.nowMS {
			free = append(free, id)
		} else if end != never && (next == 0 || end < next) {
			next = end
		}
	}
	rand.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	for _, id := range free {
		if s.done() {
			break
		}
		if _, err := s.try(ctx, id, there[id]); err != nil {
			return 0, err
		}
	}
	return next, nil
}

// mostAbsent bounds how many machine IDs without an object a search considers.
const mostAbsent = 4096

// absent returns machine IDs that have no object, from one on that chance chooses.
func (s *search) absent(there map[int64]*coordinationv1.Lease) (free []int64) {
	ids := s.terms.Range()
	first := rand.Int64N(ids.Count())
	for i := int64(0); i < ids.Count() && len(free) < mostAbsent; i++ {
		if id := ids.Low + (first+i)%ids.Count(); there[id] == nil {
			free = append(free, id)
		}
	}
	return free
}

// try grants the machine ID if it is free. object is what is known of it, nil for nothing:
// then one is made, and where there is one after all, that one counts.
func (s *search) try(ctx context.Context, id int64, object *coordinationv1.Lease) (granted bool, err error) {
	for made := object == nil; ; made = false {
		before := slot{}
		if object != nil {
			before = readSlot(object, id)
		}
		s.pool.setTaken(id, before.End)
		if before.End > s.nowMS {
			return false, nil
		}
		grant := before.granted(s.head.head, s.terms, id, s.nowMS, s.req)
		if s.head, err = s.raise(ctx, s.pool, s.head, grant.End); err != nil {
			return false, err
		}
		s.asked.tries(grant)
		present, err := s.write(ctx, grant, object)
		if err != nil {
			return false, err
		}
		if present != nil && readSlot(present, id).Nonce == grant.Nonce {
			s.keep(present, id)
			return true, nil
		}
		s.asked.failed(grant)
		if present == nil || !made {
			return false, nil // another was first
		}
		object = present
	}
}

// write creates or replaces the object, and returns the one that is there then, nil for none.
// What the object says counts, and not what became of the request: one with our nonce is
// ours. An error means that the outcome is not known, or that the server does not allow it.
func (s *search) write(ctx context.Context, grant slot, before *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	object := grant.object(s.pool.name, before)
	var failed error
	if before == nil {
		object, failed = s.api.Create(ctx, object)
	} else {
		object, failed = s.api.Update(ctx, object)
	}
	switch {
	case failed == nil:
		return object, nil
	case ctx.Err() != nil:
		return nil, failed
	case kubeconn.IsSettled(failed) && !kubeconn.IsConflict(failed):
		s.asked.failed(grant)
		return nil, failed
	}
	present, err := s.api.Get(ctx, slotName(s.pool.name, grant.ID))
	switch {
	case err == nil && (kubeconn.IsConflict(failed) || readSlot(present, grant.ID).Nonce == grant.Nonce):
		return present, nil
	case !kubeconn.IsConflict(failed):
		return nil, failed // it may still come
	case kubeconn.IsNotFound(err):
		return nil, nil
	}
	return nil, err
}

// keep notes a grant that was written.
func (s *search) keep(object *coordinationv1.Lease, id int64) {
	g := got{readSlot(object, id), object}
	s.pool.setTaken(id, g.End)
	s.pool.setLooked(true)
	s.got = append(s.got, g)
}

func (q *pool) takenUntil(id int64) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.taken[id]
}

func (q *pool) setTaken(id, until int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if until == 0 {
		delete(q.taken, id)
		return
	}
	q.taken[id] = until
}
