package memory

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// shown is the record as others may see it.
func (r *record) shown() provider.Record {
	l := r.lease
	l.Secret = ""
	return provider.Record{Lease: l, Service: r.service, Meta: maps.Clone(r.meta), End: r.end, Released: r.released}
}

// Extend implements provider.Extender.
func (p *Provider) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	if err := p.begin(ctx); err != nil {
		return lease.Lease{}, err
	}
	terms := p.services.Of(req.Service)
	p.store.mu.Lock()
	defer p.store.mu.Unlock()
	pl, ok := p.store.pools[terms.Pool]
	if !ok {
		return lease.Lease{}, provider.ErrNotFound
	}
	r, err := pl.extend(terms, req, p.store.nowMS())
	pl.counters[provider.CountExtends]++
	switch {
	case err == nil:
		pl.counters[provider.CountExtended]++
	case errors.Is(err, provider.ErrBadSignature):
		pl.counters[provider.CountNotOwner]++
	case errors.Is(err, provider.ErrConflict):
		pl.counters[provider.CountExtendEnded]++
	}
	if err != nil {
		return lease.Lease{}, err
	}
	return r.shown().Lease, nil
}

func (pl *pool) extend(t provider.Terms, req provider.ExtendRequest, now int64) (*record, error) {
	r := pl.record(req.ID, req.BitSeq)
	switch {
	case r == nil:
		return nil, provider.ErrNotFound
	case !req.Signed(r.lease.Secret):
		return nil, provider.ErrBadSignature
	case r.released || now >= r.lease.Expired:
		return nil, provider.ErrConflict
	}
	// As for a grant, all others that overlap must have ended: while the clock
	// was ahead, one may have been granted that the longer lease would meet.
	for _, other := range pl.records {
		if other != r && other.lease.Slot().Overlaps(r.lease.Slot()) && other.end > now {
			return nil, provider.ErrConflict
		}
	}
	r.lease.Expired, r.lease.ReservedUntil = req.Extended(t, now, r.lease.Expired, r.lease.ReservedUntil)
	pl.setEnd(r, r.lease.ReservedUntil)
	return r, nil
}

// Locate implements provider.Locator. It knows every grant.
func (p *Provider) Locate(ctx context.Context, service string, low, atMS int64) ([]provider.Record, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	p.store.mu.Lock()
	defer p.store.mu.Unlock()
	pl, ok := p.store.pools[p.services.Of(service).Pool]
	if !ok {
		return nil, nil
	}
	var found []provider.Record
	for _, r := range pl.history {
		ended := r.lease.Expired
		if r.released {
			ended = min(ended, r.end)
		}
		if slot := r.lease.Slot(); slot.Start <= low && low < slot.End && r.lease.Created <= atMS && atMS < ended {
			found = append(found, r.shown())
		}
	}
	slices.SortStableFunc(found, func(a, b provider.Record) int { return cmp.Compare(b.Lease.Created, a.Lease.Created) })
	return found, nil
}

// countAcquire counts an acquire by its outcome.
func (pl *pool) countAcquire(err error) {
	var full *provider.FullError
	switch {
	case err == nil:
		pl.counters[provider.CountGranted]++
	case errors.As(err, &full):
		pl.counters[provider.CountFull]++
	}
	pl.counters[provider.CountAcquires]++
}

// Counters implements provider.Counter.
func (p *Provider) Counters(ctx context.Context, service string) (map[string]int64, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	p.store.mu.Lock()
	defer p.store.mu.Unlock()
	counted := provider.NoCounts()
	if pl, ok := p.store.pools[p.services.Of(service).Pool]; ok {
		maps.Copy(counted, pl.counters)
	}
	return counted, nil
}
