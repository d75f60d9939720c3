package proof

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// terms of one host's acquires: layouts differ between hosts.
type terms struct {
	epoch            int64
	bitTS, bitSeq    int
	bitID            int
	term, quarantine int64
}

// store is the grant rule as section 3 of the design words it, with switches.
type store struct {
	now    func() int64
	rnd    *rand.Rand
	broken rule
	terms  map[string]terms // by service, which here is a host's name

	records  []*record
	requests map[string][]lease.Lease
	secrets  int
}

type record struct {
	lease    lease.Lease
	end      int64
	released bool
	deleted  bool // only with recordKept broken
}

var _ interface {
	provider.Provider
	provider.Verifier
} = (*store)(nil)

func (s *store) Info() provider.Info {
	return provider.Info{Name: "simulated", Scope: provider.ScopeShared, OwnClock: true, Coordinated: true}
}

func (s *store) Close() error { return nil }

// free reports whether the slot of l may be granted at the time now, and when
// it may if not.
func (s *store) busyUntil(l lease.Lease) (until int64) {
	for _, r := range s.records {
		overlaps := r.lease.Slot().Overlaps(l.Slot())
		if s.broken == overlapByRange {
			overlaps = r.lease.ID == l.ID
		}
		if overlaps && !r.deleted {
			until = max(until, r.end)
		}
	}
	return until
}

func (s *store) Acquire(_ context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	now, t := s.now(), s.terms[req.Service]
	if leases, ok := s.requests[req.RequestID]; ok {
		for _, l := range leases {
			if r := s.current(l); r == nil || r.released || now >= l.Expired {
				return nil, provider.ErrConflict
			}
		}
		return leases, nil
	}
	var granted []lease.Lease
	ids := int64(1) << (t.bitID - 1)
	first := s.rnd.Int64N(ids)
	for i := int64(0); i < ids && int64(len(granted))<<t.bitSeq < max(req.ThroughputPerMS, 1); i++ {
		l := lease.Lease{
			ID: (first + i) % ids, Created: now, Expired: now + t.term, ReservedUntil: now + t.term + t.quarantine,
			EpochMS: t.epoch, BitReserve: 1, BitTS: t.bitTS, BitID: t.bitID, BitSeq: t.bitSeq,
		}
		if s.busyUntil(l) > now {
			continue
		}
		s.secrets++
		l.Secret = fmt.Sprint("secret ", s.secrets)
		end := l.ReservedUntil
		if s.broken == quarantineKept {
			end = l.Expired
		}
		s.replace(&record{lease: l, end: end})
		granted = append(granted, l)
	}
	if len(granted) == 0 {
		return nil, &provider.FullError{Pool: "default", Slots: ids}
	}
	if req.RequestID != "" {
		s.requests[req.RequestID] = granted
	}
	return granted, nil
}

// replace puts the record in the place of its slot's last one.
func (s *store) replace(r *record) {
	for i, old := range s.records {
		if old.lease.Slot() == r.lease.Slot() {
			s.records[i] = r
			return
		}
	}
	s.records = append(s.records, r)
}

// current is the record of the lease, or nil when another grant took its slot.
func (s *store) current(l lease.Lease) *record {
	for _, r := range s.records {
		if r.lease.Slot() == l.Slot() && !r.deleted {
			if r.lease.Secret == l.Secret {
				return r
			}
			return nil
		}
	}
	return nil
}

func (s *store) Release(_ context.Context, req provider.ReleaseRequest) error {
	if err := req.CheckTime(s.now(), 0); err != nil {
		return err
	}
	for _, r := range s.records {
		if r.lease.ID != req.ID || r.lease.BitSeq != req.BitSeq || r.deleted {
			continue
		}
		if !lease.Verify(r.lease.Secret, req.ID, req.TimestampMS, req.Signature) {
			return provider.ErrBadSignature
		}
		if r.released {
			return nil
		}
		r.released = true
		r.end = provider.ReleasedEnd(r.lease.Created, r.end, req.TimestampMS)
		switch s.broken {
		case endBoundAtRelease:
			r.end = s.now()
		case recordKept:
			r.deleted = true
		}
		return nil
	}
	return provider.ErrNotFound
}

func (s *store) Verify(_ context.Context, _ string, leases []lease.Lease) (lost []lease.Lease, _ error) {
	for _, l := range leases {
		if r := s.current(l); r == nil || r.released {
			lost = append(lost, l)
		}
	}
	return lost, nil
}
