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
func (p *Provider) Extend(ctx context.Context, service string, l lease.Lease) (lease.Lease, error) {
	if err := p.begin(ctx); err != nil {
		return lease.Lease{}, err
	}
	terms := p.services.Of(service)
	p.store.mu.Lock()
	defer p.store.mu.Unlock()
	pl, ok := p.store.pools[terms.Pool]
	if !ok {
		return lease.Lease{}, provider.ErrNotFound
	}
	r, err := pl.extend(terms, l, p.store.nowMS())
	pl.counters["extend_ttl_count"]++
	switch {
	case err == nil:
		pl.counters["extend_ttl_success"]++
	case errors.Is(err, provider.ErrBadSignature):
		pl.counters["extend_ttl_ownership_error"]++
	case errors.Is(err, provider.ErrConflict):
		pl.counters["extend_ttl_expire_warning"]++
	}
	if err != nil {
		return lease.Lease{}, err
	}
	return r.lease, nil
}

func (pl *pool) extend(t provider.Terms, l lease.Lease, now int64) (*record, error) {
	var r *record
	for _, candidate := range pl.records {
		if candidate.lease.ID == l.ID && candidate.lease.BitSeq == l.BitSeq {
			r = candidate
		}
	}
	switch {
	case r == nil:
		return nil, provider.ErrNotFound
	case r.lease.Secret != l.Secret:
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
	r.lease.Expired = max(r.lease.Expired, now+t.Term.Milliseconds())
	r.lease.ReservedUntil = max(r.lease.ReservedUntil, r.lease.Expired+t.Quarantine.Milliseconds())
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
		pl.counters["client_get_id_success"]++
	case errors.As(err, &full):
		pl.counters["get_id_no_available_id"]++
	}
	pl.counters["client_get_id_count"]++
}

// Counters implements provider.Counter.
func (p *Provider) Counters(ctx context.Context, service string) (map[string]int64, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	p.store.mu.Lock()
	defer p.store.mu.Unlock()
	counted := map[string]int64{}
	if pl, ok := p.store.pools[p.services.Of(service).Pool]; ok {
		maps.Copy(counted, pl.counters)
	}
	return counted, nil
}
