package search

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

const extendWaits rule = "an extension waits for all that overlap"

// extended is a world of clients that extend their leases, as a lease server's may: the
// product's rules of the pool alone. Any look at the store's clock may show any time. One ID
// is watched, and in each state the world asks whether another lease could make it again.
type extended struct {
	*leases
	held []tenure
	used *use
}

// tenure is a lease as its client has it.
type tenure struct {
	lease    lease.Lease
	service  string
	released bool
}

// use is the watched ID.
type use struct {
	by int
	ms int64
}

func newExtended(s leasesSetting) func() world {
	begin := newLeases(s)
	return func() world { return &extended{leases: begin().(*leases)} }
}

// The moves of a world of extensions.
const (
	isGranted int8 = iota + 120
	isExtended
	extensionLost
	isReleased
	isUsed
)

var extendMoves = map[int8]string{
	isGranted: "the store grants a lease of %s", isExtended: "the store extends lease %d", extensionLost: "the store extends lease %d, and its client does not hear of it",
	isReleased: "lease %d is released", isUsed: "lease %d makes the ID to watch",
}

func (w *extended) moves(all []move) []move {
	add := func(does bool, kind int8, who int) {
		for at := int8(1); does && at <= w.times; at++ {
			all = append(all, move{kind, int8(who), at})
		}
	}
	for i := range w.layouts {
		add(len(w.held) < w.leasesSetting.grants, isGranted, i)
	}
	for i, h := range w.held {
		add(!h.released, isExtended, i)
		add(!h.released, extensionLost, i)
		add(!h.released, isReleased, i)
		add(!h.released && w.used == nil, isUsed, i)
	}
	return all
}

func (w *extended) do(m move) {
	ctx := context.Background()
	w.now = int64(m.at)
	if m.kind == isGranted {
		service := w.daemons[m.who].service
		got, err := w.provider.Acquire(ctx, provider.AcquireRequest{Service: service, RequestID: fmt.Sprint(len(w.held))})
		if err == nil {
			w.held = append(w.held, tenure{lease: got[0], service: service})
			w.grants = append(w.grants, got...) // each has its own secret
		}
		return
	}
	h := &w.held[m.who]
	switch m.kind {
	case isExtended, extensionLost:
		longer, err := provider.Extend(ctx, w.provider, h.service, h.lease)
		if w.off == extendWaits && errors.Is(err, provider.ErrConflict) && w.now < h.lease.Expired {
			longer, err = h.lease, nil
			longer.Expired = max(longer.Expired, w.now+w.term)
		}
		if err == nil && m.kind == isExtended {
			h.lease = longer
		}
	case isReleased:
		last := h.lease.Created
		if w.used != nil && w.used.by == int(m.who) && w.off != releaseCoversLastEmbedded {
			last = w.used.ms
		}
		h.released = true // before it is sent, and whatever becomes of it
		_ = w.provider.Release(ctx, provider.ReleaseRequest{
			Service: h.service, ID: h.lease.ID, BitSeq: h.lease.BitSeq, TimestampMS: last, Signature: lease.Sign(h.lease.Secret, h.lease.ID, last),
		})
	case isUsed:
		if h.lease.Allows(w.now) {
			w.used = &use{int(m.who), w.now}
		}
	}
}

func (w *extended) text(m move) string {
	if m.kind == isGranted {
		return fmt.Sprintf(extendMoves[m.kind], w.daemons[m.who].service)
	}
	return fmt.Sprintf(extendMoves[m.kind], m.who)
}

func (w *extended) broken() string {
	for i, h := range w.held {
		if w.used != nil && i != w.used.by && !h.released && h.lease.Allows(w.used.ms) && h.lease.Slot().Overlaps(w.held[w.used.by].lease.Slot()) {
			return fmt.Sprintf("lease %d can make the ID of %d ms again that lease %d made", i, w.used.ms, w.used.by)
		}
	}
	return ""
}

func (w *extended) fingerprint() fingerprint {
	s := sum{skip: unimportant, field: w.openRequests}
	s.add(w.store, slices.Clip(w.held), w.used)
	return s.done()
}
