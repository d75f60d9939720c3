package pool

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
)

// errAbandoned: the caller of a change was told that it was not sent.
var errAbandoned = errors.New("the change was given up")

// sending says how far a change is: a run of its rule may still be under way when the change
// has failed.
type sending struct{ atomic.Int32 }

const (
	decided   = 1 // a run of the rule had it written
	abandoned = 2 // none has, and none will
)

// decide reports whether a run may have something written.
func (s *sending) decide() bool { return s.CompareAndSwap(0, decided) || s.Load() == decided }

// abandon reports whether no run has had anything written. Then none will.
func (s *sending) abandon() bool { return s.CompareAndSwap(0, abandoned) }

// Release implements provider.Provider.
func (p *Provider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	if err := p.begin(ctx); err != nil {
		return err
	}
	t := p.cfg.Services.Of(req.Service)
	var sent sending
	err := p.based(t, func(base head) error {
		ask := record.Ask{Keys: []string{HeadKey(t.Pool)}, Fresh: true}
		for _, bitSeq := range base.meant(req) {
			ask.Keys = add(ask.Keys, base.keys(t.Pool).block(base.blockOf(req.ID<<bitSeq)))
		}
		_, err := p.cfg.Records.Change(record.Upkeep(ctx), ask, func(v record.View) ([]record.Write, error) {
			s, err := p.seePool(v, t, base)
			if err != nil {
				return nil, err
			}
			write, err := s.released(req)
			if err != nil || write == nil {
				return nil, err
			}
			if !sent.decide() {
				return nil, errAbandoned
			}
			return append(s.unmarked(), *write), nil
		})
		return err
	})
	p.mu.Lock()
	delete(p.lists, t.Pool) // of those without the machine ID
	p.mu.Unlock()
	for _, refusal := range []error{provider.ErrNotFound, provider.ErrBadSignature, provider.ErrTimestampSkew} {
		if errors.Is(err, refusal) {
			return err
		}
	}
	if err != nil && sent.abandon() {
		return provider.NotSent(err)
	}
	return failure(err)
}

// meant are the bit_seqs of the slots that a release may mean.
func (h head) meant(req provider.ReleaseRequest) (bitSeqs []int) {
	low, high := h.bitSeq-provider.MaxApart, h.bitSeq+provider.MaxApart
	if req.BitSeq != provider.AnyBitSeq {
		low, high = max(low, req.BitSeq), min(high, req.BitSeq)
	}
	for bitSeq := low; bitSeq <= high; bitSeq++ {
		if h.has(req.ID, bitSeq) {
			bitSeqs = append(bitSeqs, bitSeq)
		}
	}
	return bitSeqs
}

// released returns the write of the release: of the grants that it may mean, it ends the one with
// its signature. It is nil where that was released before.
func (s seenPool) released(req provider.ReleaseRequest) (*record.Write, error) {
	refused := provider.ErrNotFound
	if !s.exists {
		return nil, refused
	}
	for _, bitSeq := range s.head.meant(req) {
		start := req.ID << bitSeq
		key := s.name.block(s.head.blockOf(start))
		grants, err := s.grants(key)
		if err != nil {
			return nil, err
		}
		at := find(grants, start, bitSeq)
		if at < 0 {
			continue
		}
		after, changed, err := req.Apply(s.head.signed(grants[at]), s.NowMS)
		switch {
		case errors.Is(err, provider.ErrBadSignature):
			refused = err
			continue
		case err != nil || !changed:
			return nil, err
		}
		grants[at] = grants[at].with(after)
		return &record.Write{Key: key, Value: encode(grants), Frees: true}, nil
	}
	return nil, refused
}

// Extend implements provider.Provider.
func (p *Provider) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	if err := p.begin(ctx); err != nil {
		return lease.Lease{}, err
	}
	t := p.cfg.Services.Of(req.Service)
	pending := p.uncounted(t.Pool)
	var last run[lease.Lease]
	err := p.based(t, func(base head) error {
		ask := record.Ask{Keys: []string{HeadKey(t.Pool), base.keys(t.Pool).count(p.shard)}, Fresh: true}
		if base.has(req.ID, req.BitSeq) {
			ask.Keys = append(ask.Keys, base.keys(t.Pool).block(base.blockOf(req.ID<<req.BitSeq)))
		}
		var err error
		last, err = change(record.Upkeep(ctx), p.cfg.Records, ask, func(v record.View) (lease.Lease, []record.Write, error) {
			return p.extended(v, t, base, req, pending)
		})
		return err
	})
	if err == nil && last.wrote { // the counts too
		return last.result, nil
	}
	if err == nil || keepsCounts(err, last.err) {
		p.count(t.Pool, pending)
	}
	p.countExtend(t.Pool, err)
	if err != nil {
		return lease.Lease{}, failure(err)
	}
	return last.result, nil
}

// extended decides on an extension, and counts it with the counts not written yet.
func (p *Provider) extended(v record.View, t provider.Terms, base head, req provider.ExtendRequest, pending counts) (lease.Lease, []record.Write, error) {
	s, err := p.seePool(v, t, base)
	if s.fenced != nil {
		// A forgotten grant may overlap: the clock may have been ahead when it was made.
		return lease.Lease{}, nil, s.fenced
	}
	if err != nil {
		return lease.Lease{}, nil, err
	}
	longer, writes, err := s.extended(t, req)
	if len(writes) > 0 {
		writes = append(writes, s.counted(p.shard, pending.plus(counts{extended: 1})))
	}
	return longer, writes, err
}

// extended moves the end of a living lease, and returns it without its secret. There is nothing
// to write where the request was carried out before.
func (s seenPool) extended(t provider.Terms, req provider.ExtendRequest) (lease.Lease, []record.Write, error) {
	if s.exists && s.head.timeline != t.Timeline {
		return lease.Lease{}, nil, provider.TimelineError(t.Pool, s.head.timeline, t.Timeline)
	}
	if !s.exists || !s.head.has(req.ID, req.BitSeq) {
		return lease.Lease{}, nil, provider.ErrNotFound
	}
	start := req.ID << req.BitSeq
	key := s.name.block(s.head.blockOf(start))
	grants, err := s.grants(key)
	if err != nil {
		return lease.Lease{}, nil, err
	}
	at := find(grants, start, req.BitSeq)
	if at < 0 {
		return lease.Lease{}, nil, provider.ErrNotFound
	}
	longer, err := req.Apply(s.head.signed(grants[at]), t, s.NowMS)
	if err != nil {
		return lease.Lease{}, nil, err
	}
	// As for a grant, all others that overlap must have ended: while the clock was ahead, one
	// may have been granted that the longer lease would meet.
	if untilWithout(grants, grants[at].slot(), at) > s.NowMS {
		return lease.Lease{}, nil, provider.ErrConflict
	}
	g := grants[at].with(longer)
	if g.expired == grants[at].expired && g.end == grants[at].end {
		return s.head.lease(g), nil, nil
	}
	grants[at] = g
	return s.head.lease(g), append(s.unmarked(), record.Write{Key: key, Value: encode(grants), GrantMS: t.LongestMS()}), nil
}
