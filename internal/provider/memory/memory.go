// Package memory is a provider that keeps its records in the process. It is
// for tests and simulations.
//
// It forgets with the process. Two processes with a memory provider each grant
// the same machine IDs, so its scope is "unverified".
package memory

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	connurl "github.com/kazahana/kazahana/internal/conn/url"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Store holds the records of any number of pools. Providers that share one
// are like hosts that share a server.
type Store struct {
	nowMS func() int64

	mu    sync.Mutex
	pools map[string]*pool
}

// NewStore returns an empty store. nowMS is the provider's clock in Unix
// milliseconds; nil means the wall clock.
func NewStore(nowMS func() int64) *Store {
	if nowMS == nil {
		nowMS = func() int64 { return time.Now().UnixMilli() }
	}
	return &Store{nowMS: nowMS, pools: map[string]*pool{}}
}

type pool struct {
	timeline snowflake.Timeline
	records  map[slotKey]*record // never deleted from
	levels   map[int]bool        // each bit_seq that a record has
	rings    map[ringKey]*ring
	requests map[requestKey][]grant // never deleted from: tests end
	history  []*record              // every grant, oldest first; tests end
	counters map[string]int64
}

type slotKey struct {
	start  int64
	bitSeq int
}

type ringKey struct {
	bitSeq int
	ids    provider.IDRange
}

type requestKey struct{ service, id string }

// grant points at a record as it was when it was granted.
type grant struct {
	slot   slotKey
	secret string
}

// record is a slot's latest grant.
type record struct {
	lease    lease.Lease
	end      int64 // from then on the slot can be granted again
	released bool
	service  string
	meta     map[string]string
}

// Provider grants from a Store on the terms of its services.
type Provider struct {
	store    *Store
	services provider.Services
	joined   map[string]bool // pools that have counted this client; store.mu is held

	closeOnce sync.Once
	closed    chan struct{}
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.Verifier = (*Provider)(nil)
	_ provider.Lister   = (*Provider)(nil)
	_ provider.Extender = (*Provider)(nil)
	_ provider.Locator  = (*Provider)(nil)
	_ provider.Counter  = (*Provider)(nil)
)

// Params returns the parameters that a memory: URL takes.
func Params() []string { return provider.TermsParams() }

// FromURL opens memory:, a store of its own. The URL's parameters set the terms
// of services that named does not have.
func FromURL(u *url.URL, named map[string]provider.Terms, nowMS func() int64) (*Provider, error) {
	if u.Opaque != "" || u.Host != "" || u.Path != "" {
		return nil, errors.New("memory: has no path; parameters follow after '?'")
	}
	q, err := connurl.ParseQuery(u.RawQuery, Params())
	if err != nil {
		return nil, err
	}
	terms, err := provider.ParseTerms(q)
	if err != nil {
		return nil, err
	}
	return New(NewStore(nowMS), provider.Services{Default: terms, Named: named})
}

// New returns a provider on the store. It fails when the services' terms are
// invalid or contradict a pool of the store.
func New(store *Store, services provider.Services) (*Provider, error) {
	if err := services.Validate(); err != nil {
		return nil, err
	}
	return &Provider{store: store, services: services, joined: map[string]bool{}, closed: make(chan struct{})}, nil
}

// Info implements provider.Provider.
func (p *Provider) Info() provider.Info {
	return provider.Info{Name: "memory", URL: "memory:", Scope: provider.ScopeUnverified, Coordinated: true, History: "all grants of its process"}
}

// Close implements provider.Provider. The store keeps its records.
func (p *Provider) Close() error {
	p.closeOnce.Do(func() { close(p.closed) })
	return nil
}

// begin reports why an operation cannot start.
func (p *Provider) begin(ctx context.Context) error {
	select {
	case <-p.closed:
		return provider.NotSent(errors.New("the memory provider is closed"))
	default:
		return provider.NotSent(ctx.Err())
	}
}

// Acquire implements provider.Provider.
func (p *Provider) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	terms := p.services.Of(req.Service)
	p.store.mu.Lock()
	defer p.store.mu.Unlock()
	now := p.store.nowMS()
	if err := terms.CheckClock(now); err != nil {
		return nil, err
	}
	pl, err := p.store.pool(terms)
	if err != nil {
		return nil, err
	}
	if req.Client == provider.NewClient || req.Client == provider.OwnClient && !p.joined[terms.Pool] {
		p.joined[terms.Pool] = p.joined[terms.Pool] || req.Client == provider.OwnClient
		pl.counters[provider.CountClients]++
	}
	leases, err := pl.acquire(terms, req, now)
	pl.countAcquire(err)
	return leases, err
}

func (pl *pool) acquire(terms provider.Terms, req provider.AcquireRequest, now int64) ([]lease.Lease, error) {
	key := requestKey{req.Service, req.RequestID}
	if before, ok := pl.requests[key]; ok && req.RequestID != "" {
		return pl.replay(before, now)
	}
	var leases []lease.Lease
	for range terms.LeaseCount(req.ThroughputPerMS) {
		l, err := pl.grant(terms, req, now)
		if err != nil && len(leases) == 0 {
			return nil, err
		}
		if err != nil {
			break // some are better than none
		}
		leases = append(leases, l)
		pl.requests[key] = append(pl.requests[key], grant{keyOf(l), l.Secret})
	}
	return leases, nil
}

func (s *Store) pool(t provider.Terms) (*pool, error) {
	pl, ok := s.pools[t.Pool]
	if !ok {
		pl = &pool{
			timeline: t.Timeline, records: map[slotKey]*record{}, levels: map[int]bool{},
			rings: map[ringKey]*ring{}, requests: map[requestKey][]grant{}, counters: map[string]int64{},
		}
		s.pools[t.Pool] = pl
	}
	if pl.timeline != t.Timeline {
		return nil, provider.TimelineError(t.Pool, pl.timeline, t.Timeline)
	}
	return pl, nil
}

func keyOf(l lease.Lease) slotKey { return slotKey{l.Slot().Start, l.BitSeq} }

// replay is the answer to a request that was granted before.
func (pl *pool) replay(grants []grant, now int64) ([]lease.Lease, error) {
	leases := make([]lease.Lease, 0, len(grants))
	for _, g := range grants {
		r := pl.records[g.slot]
		if r.lease.Secret != g.secret || r.released || now >= r.lease.Expired {
			return nil, provider.ErrConflict
		}
		leases = append(leases, r.lease)
	}
	return leases, nil
}

func (pl *pool) grant(t provider.Terms, req provider.AcquireRequest, now int64) (lease.Lease, error) {
	ring := pl.ring(t)
	id, end := ring.choose()
	if end > now {
		return lease.Lease{}, &provider.FullError{Pool: t.Pool, Slots: t.Range().Count(), NextEndMS: end}
	}
	l := t.Grant(id, now, provider.NewSecret())
	r := &record{lease: l, service: req.Service, meta: maps.Clone(req.Meta)}
	pl.records[keyOf(l)] = r
	pl.history = append(pl.history, r)
	pl.levels[t.BitSeq] = true
	ring.cursor = id
	pl.setEnd(r, l.ReservedUntil)
	return l, nil
}

// end is the largest end of the records that lie in the slot, 0 if none does.
func (pl *pool) end(s snowflake.Slot) int64 {
	var end int64
	for level := range pl.levels {
		size := int64(1) << level
		if size > s.Size() {
			continue
		}
		if s.Size()/size > int64(len(pl.records)) {
			for _, r := range pl.records {
				if r.lease.BitSeq == level && s.Overlaps(r.lease.Slot()) {
					end = max(end, r.end)
				}
			}
			continue
		}
		for start := s.Start; start < s.End; start += size {
			if r, ok := pl.records[slotKey{start, level}]; ok {
				end = max(end, r.end)
			}
		}
	}
	return end
}

// Release implements provider.Provider.
func (p *Provider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	if err := p.begin(ctx); err != nil {
		return err
	}
	p.store.mu.Lock()
	defer p.store.mu.Unlock()
	pl, ok := p.store.pools[p.services.Of(req.Service).Pool]
	if !ok {
		return provider.ErrNotFound
	}
	r, err := pl.find(req)
	if err != nil {
		return err
	}
	if err := req.CheckTime(p.store.nowMS(), r.lease.Expired); err != nil {
		return err
	}
	if !r.released {
		pl.setEnd(r, provider.ReleasedEnd(r.lease.Created, r.end, req.TimestampMS))
		r.released = true
	}
	return nil
}

// find is the record that the release means and is signed for.
func (pl *pool) find(req provider.ReleaseRequest) (*record, error) {
	// Whoever knows the layout need not ask all records.
	if r := pl.record(req.ID, req.BitSeq); r != nil && req.Signed(r.lease.Secret) {
		return r, nil
	}
	err := provider.ErrNotFound
	for _, r := range pl.records {
		if r.lease.ID != req.ID || req.BitSeq != provider.AnyBitSeq && req.BitSeq != r.lease.BitSeq {
			continue
		}
		if req.Signed(r.lease.Secret) {
			return r, nil
		}
		err = provider.ErrBadSignature
	}
	return nil, err
}

// record is that of the machine ID in the layout, nil when it was never granted.
func (pl *pool) record(machineID int64, bitSeq int) *record {
	if bitSeq < 0 {
		return nil
	}
	if r := pl.records[slotKey{machineID << bitSeq, bitSeq}]; r != nil && r.lease.ID == machineID {
		return r
	}
	return nil
}

// Verify implements provider.Verifier.
func (p *Provider) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	p.store.mu.Lock()
	defer p.store.mu.Unlock()
	for i, c := range claims {
		var r *record
		if pl, ok := p.store.pools[p.services.Of(service).Pool]; ok {
			r = pl.record(c.ID, c.BitSeq)
		}
		if r == nil || !c.Signed(r.lease.Secret) || r.released {
			lost = append(lost, i)
		}
	}
	return lost, nil
}

// List implements provider.Lister.
func (p *Provider) List(ctx context.Context, service string) ([]provider.Record, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	p.store.mu.Lock()
	defer p.store.mu.Unlock()
	pl, ok := p.store.pools[p.services.Of(service).Pool]
	if !ok {
		return nil, nil
	}
	list := make([]provider.Record, 0, len(pl.records))
	for _, r := range pl.records {
		list = append(list, r.shown())
	}
	slices.SortFunc(list, provider.CompareRecords)
	return list, nil
}
