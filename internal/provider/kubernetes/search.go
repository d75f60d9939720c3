package kubernetes

import (
	"context"
	"math/rand/v2"

	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/provider"
)

// misses is how many taken machine IDs a search draws before it lists the pool.
const misses = 8

// search looks for free machine IDs, and grants them.
type search struct {
	*Provider
	pool  *pool
	head  *head
	terms provider.Terms
	nowMS int64 // the time that no fence holds back: grants begin then, not at the clock's time by now
	req   provider.AcquireRequest
	asked *asked
	ends  map[int64]int64 // of machine IDs, as far as this search has seen them
	got   []slot          // grants that were written
}

// run grants as many leases as are wanted, or as are free. Its error means that there is
// none at all, or that the outcome of one is not known.
func (s *search) run(ctx context.Context) error {
	ids := s.terms.Range()
	for missed := 0; missed < misses && !s.done(); {
		id := ids.Low + rand.Int64N(ids.Count())
		granted, err := s.try(ctx, emptySlot(id, s.ends[id]))
		if err != nil {
			return err
		}
		if !granted {
			missed++
		}
	}
	// The server's cache costs its store nothing. That all are taken needs a list that holds the
	// slots released a moment ago.
	for _, cached := range []bool{true, false} {
		if s.done() {
			return nil
		}
		if err := s.listed(ctx, cached); err != nil {
			return err
		}
	}
	if len(s.got) == 0 {
		return &provider.FullError{Pool: s.pool.name, Slots: ids.Count(), NextEndMS: s.nextEnd()}
	}
	return nil
}

// done reports whether there are as many leases as are wanted.
func (s *search) done() bool { return len(s.got) >= s.terms.LeaseCount(s.req.ThroughputPerMS) }

// listed grants machine IDs that a list of the pool shows to be free, or does not have, from one on
// that chance chooses.
func (s *search) listed(ctx context.Context, cached bool) error {
	slots, err := s.slots(ctx, s.pool, kubeconn.ListOptions{Cached: cached})
	if err != nil {
		return err
	}
	there := map[int64]slot{}
	for _, one := range slots {
		there[one.Lease.ID] = one
	}
	ids := s.terms.Range()
	first := rand.Int64N(ids.Count())
	for i := int64(0); i < ids.Count() && !s.done(); i++ {
		id := ids.Low + (first+i)%ids.Count()
		one, ok := there[id]
		if !ok {
			one = emptySlot(id, 0)
		}
		if _, err := s.try(ctx, one); err != nil {
			return err
		}
	}
	return nil
}

// nextEnd is when the first machine ID that was seen taken can be granted, 0 if no time is known.
func (s *search) nextEnd() (next int64) {
	for _, end := range s.ends {
		if end > s.nowMS && end != never && (next == 0 || end < next) {
			next = end
		}
	}
	return next
}

// try grants the machine ID if it is free. Where nothing is known of it, an object is made, and
// where there is one after all, that one counts.
func (s *search) try(ctx context.Context, before slot) (granted bool, err error) {
	id := before.Lease.ID
	for made := before.read == nil; ; made = false {
		s.ends[id] = before.End
		if before.End > s.nowMS {
			return false, nil
		}
		grant := before.granted(*s.head, s.terms, s.nowMS, s.req)
		if s.head, err = s.raise(ctx, s.pool, s.head, grant.End); err != nil {
			return false, err
		}
		s.asked.grants = append(s.asked.grants, grant)
		present, err := s.write(ctx, grant)
		if err != nil {
			return false, err
		}
		if present != nil && present.Nonce == grant.Nonce {
			s.pool.looked.Store(true)
			s.ends[id], s.got = present.End, append(s.got, *present)
			return true, nil
		}
		s.asked.drop(grant)
		if present == nil || !made {
			return false, nil // another was first
		}
		before = *present
	}
}

// write writes the grant, and returns the slot that is there then, nil for none. What its object
// says counts, and not what became of the request: one with our nonce is ours. An error means
// that the outcome is not known, or that the server does not allow it.
func (s *search) write(ctx context.Context, grant slot) (*slot, error) {
	written, failed := s.writeSlot(ctx, s.pool, grant)
	switch {
	case failed == nil:
		return written, nil
	case ctx.Err() != nil:
		return nil, failed
	case kubeconn.IsSettled(failed) && !kubeconn.IsConflict(failed):
		s.asked.drop(grant)
		return nil, failed
	}
	present, err := s.readSlot(ctx, s.pool, grant.Lease.ID)
	switch {
	case kubeconn.IsConflict(failed):
		return present, err
	case err == nil && present != nil && present.Nonce == grant.Nonce:
		return present, nil
	}
	return nil, failed // it may still come
}
