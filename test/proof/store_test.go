package proof

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// terms of one service's acquires: layouts differ between services.
type terms struct {
	epoch            int64
	bitTS, bitSeq    int
	bitID            int
	term, quarantine int64
}

// store is the grant rule as section 3 of the design words it, with switches.
type store struct {
	provider.Lacking
	now   func() int64
	w     *world
	terms map[string]terms // by service

	content
	secrets int

	// The rule of the SQLite files: the store notices that it was restored, and a
	// watermark beside the file remembers the greatest end that was ever granted.
	fencedUntil int64
	greatest    int64
}

// content is what a backup of the store has.
type content struct {
	records  []*slotRecord
	requests map[string][]lease.Lease
}

func (c content) copied() content {
	c.requests = maps.Clone(c.requests)
	c.records = slices.Clone(c.records)
	for i, r := range c.records {
		r := *r
		c.records[i] = &r
	}
	return c
}

// restore puts a copy in the place of the store; it may be put back again.
func (s *store) restore(c content) {
	s.content = c.copied()
	if s.w.without(restoredStoreFenced) {
		return
	}
	s.fencedUntil = max(s.fencedUntil, s.greatest)
	for _, t := range s.terms {
		s.fencedUntil = max(s.fencedUntil, s.now()+t.term+t.quarantine)
	}
}

type slotRecord struct {
	lease    lease.Lease
	end      int64
	released bool
	deleted  bool // only with recordKept broken
}

var _ provider.Provider = (*store)(nil)

func (s *store) Info() provider.Info {
	return provider.Info{Name: "simulated", Scope: provider.ScopeShared, Coordinated: true}
}

func (s *store) Close() error { return nil }

// busyUntil is when the slot of l may be granted, beside the record of its own.
func (s *store) busyUntil(l lease.Lease, own *slotRecord) (until int64) {
	for _, r := range s.records {
		overlaps := r.lease.Slot().Overlaps(l.Slot())
		if s.w.without(overlapByRange) {
			overlaps = r.lease.ID == l.ID
		}
		if overlaps && !r.deleted && r != own {
			until = max(until, r.end)
		}
	}
	return until
}

func (s *store) Acquire(_ context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	now, t := s.now(), s.terms[req.Service]
	if now < s.fencedUntil {
		return nil, &provider.FencedError{UntilMS: s.fencedUntil, Reason: "the store was restored"}
	}
	if leases, ok := s.requests[req.RequestID]; ok {
		for _, l := range leases {
			if r := s.current(provider.ClaimOf(l)); r == nil || r.released || now >= l.Expired {
				return nil, provider.ErrConflict
			}
		}
		return leases, nil
	}
	var granted []lease.Lease
	ids := int64(1) << (t.bitID - 1)
	first := s.w.rnd.Int64N(ids)
	for i := int64(0); i < ids && int64(len(granted))<<t.bitSeq < max(req.ThroughputPerMS, 1); i++ {
		l := lease.Lease{
			ID: (first + i) % ids, Created: now, Expired: now + t.term, ReservedUntil: now + t.term + t.quarantine,
			EpochMS: t.epoch, BitReserve: 1, BitTS: t.bitTS, BitID: t.bitID, BitSeq: t.bitSeq,
		}
		if s.busyUntil(l, nil) > now {
			continue
		}
		s.secrets++
		l.Secret = fmt.Sprint("secret ", s.secrets)
		end := l.ReservedUntil
		if s.w.without(quarantineKept) {
			end = l.Expired
		}
		s.replace(&slotRecord{lease: l, end: end})
		s.greatest = max(s.greatest, end)
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
func (s *store) replace(r *slotRecord) {
	for i, old := range s.records {
		if old.lease.Slot() == r.lease.Slot() {
			s.records[i] = r
			return
		}
	}
	s.records = append(s.records, r)
}

// current is the record of the lease, or nil when another grant took its slot.
func (s *store) current(c provider.Claim) *slotRecord {
	for _, r := range s.records {
		if r.lease.ID == c.ID && r.lease.BitSeq == c.BitSeq && !r.deleted {
			if c.Signed(r.lease.Secret) {
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
		if !req.Signed(r.lease.Secret) {
			return provider.ErrBadSignature
		}
		if r.released {
			return nil
		}
		r.released = true
		r.end = provider.ReleasedEnd(r.lease.Created, r.end, req.TimestampMS)
		switch {
		case s.w.without(endBoundAtRelease):
			r.end = s.now()
		case s.w.without(recordKept):
			r.deleted = true
		}
		return nil
	}
	return provider.ErrNotFound
}

// Extend implements provider.Provider.
func (s *store) Extend(_ context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	now := s.now()
	if now < s.fencedUntil && !s.w.without(restoredExtendsNothing) {
		return lease.Lease{}, &provider.FencedError{UntilMS: s.fencedUntil, Reason: "the store was restored"}
	}
	i := slices.IndexFunc(s.records, func(r *slotRecord) bool { return r.lease.ID == req.ID && r.lease.BitSeq == req.BitSeq && !r.deleted })
	if i < 0 {
		return lease.Lease{}, provider.ErrNotFound
	}
	r := s.records[i]
	if !req.Signed(r.lease.Secret) {
		return lease.Lease{}, provider.ErrBadSignature
	}
	if r.released || now >= r.lease.Expired || s.busyUntil(r.lease, r) > now {
		return lease.Lease{}, provider.ErrConflict
	}
	t := s.terms[req.Service]
	r.lease.Expired, r.end = req.Extended(provider.Terms{
		Term: time.Duration(t.term) * time.Millisecond, Quarantine: time.Duration(t.quarantine) * time.Millisecond,
	}, now, r.lease.Expired, r.end)
	r.lease.ReservedUntil = r.end
	s.greatest = max(s.greatest, r.end)
	return r.lease, nil
}

func (s *store) Verify(_ context.Context, _ string, claims []provider.Claim) (lost []int, _ error) {
	if s.now() < s.fencedUntil {
		return nil, nil // it may have forgotten them
	}
	for i, c := range claims {
		if r := s.current(c); r == nil || r.released {
			lost = append(lost, i)
		}
	}
	return lost, nil
}
