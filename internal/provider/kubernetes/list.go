package kubernetes

import (
	"context"
	"slices"

	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/provider"
)

// List implements provider.Provider.
func (p *Provider) List(ctx context.Context, service string) ([]provider.Record, error) {
	slots, err := p.slots(ctx, p.pools[p.cfg.Services.Of(service).Pool], kubeconn.ListOptions{})
	if err != nil {
		return nil, p.failure(err)
	}
	var records []provider.Record
	for _, s := range slots {
		if s.Nonce != "" {
			records = append(records, s.Record)
		}
	}
	slices.SortFunc(records, provider.CompareRecords)
	return records, nil
}

// Locate implements provider.Provider, for the pool's present layout.
func (p *Provider) Locate(ctx context.Context, service string, low, atMS int64) ([]provider.Record, error) {
	q := p.pools[p.cfg.Services.Of(service).Pool]
	h, err := p.readHead(ctx, q)
	if err != nil || h == nil || low < 0 || low >= h.timeline().FallbackBit() {
		return nil, p.failure(err)
	}
	s, err := p.readSlot(ctx, q, low>>h.BitSeq)
	if err != nil || s == nil {
		return nil, p.failure(err)
	}
	return s.locate(low, atMS), nil
}
