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

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
)

// Store holds the records of any number of pools. Providers that share one
// are like hosts that share a server.
type Store struct {
	nowMS func() int64

	mu    sync.Mutex
	pools map[string]*records
	fence fence
}

// fence is what a store knows of ends, and until when it grants nothing. Times are Unix ms.
type fence struct {
	longestMS, latestMS int64 // the longest time from a grant to its end, and the latest end
	lastMS              int64 // of the latest change
	fromMS, untilMS     int64 // 0: there is no fence
	unnoticed           bool  // the records were lost, and no operation has come since
}

// hold fences the store for longer than any grant lasts that may be missing.
func (f *fence) hold(nowMS, longestMS int64) {
	f.longestMS, f.unnoticed = max(f.longestMS, longestMS), false
	f.fromMS = max(nowMS, f.lastMS)
	f.untilMS = max(f.fromMS+f.longestMS, f.latestMS)
}

// admit notes how long a caller's grants last: earlier ones may be missing.
func (f *fence) admit(longestMS int64) {
	f.longestMS = max(f.longestMS, longestMS)
	if f.fromMS > 0 {
		f.untilMS = max(f.untilMS, f.fromMS+longestMS)
	}
}

// at is the refusal, nil where there is none.
func (f *fence) at(nowMS int64) *provider.FencedError {
	if nowMS >= f.untilMS {
		return nil
	}
	return &provider.FencedError{UntilMS: f.untilMS, Reason: "the store may have forgotten grants"}
}

// NewStore returns an empty store. nowMS is the provider's clock in Unix
// milliseconds; nil means the wall clock.
func NewStore(nowMS func() int64) *Store {
	if nowMS == nil {
		nowMS = func() int64 { return time.Now().UnixMilli() }
	}
	return &Store{nowMS: nowMS, pools: map[string]*records{}}
}

// Forget empties the store, as if an empty backup had been put back. The next operation
// notices it.
func (s *Store) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools, s.fence.unnoticed = map[string]*records{}, true
}

type requestKey struct{ service, id string }

// grant points at a record as it was when it was granted.
type grant struct {
	key    pool.Key
	secret string
}

// records is one pool. It implements pool.Reader; the store's lock is held.
type records struct {
	*pool.Line
	known    pool.Pool
	latest   map[pool.Key]*pool.Record // never deleted from
	cursors  map[pool.Ring]int64
	requests map[requestKey][]grant // never deleted from: tests end
	history  []*pool.Record         // every grant, oldest first; tests end
	counters map[string]int64
}

func newRecords() *records {
	return &records{
		latest: map[pool.Key]*pool.Record{}, cursors: map[pool.Ring]int64{},
		requests: map[requestKey][]grant{}, counters: map[string]int64{},
	}
}

// Pool implements pool.Reader.
func (r *records) Pool() (pool.Pool, error) { return r.known, nil }

// Cursor implements pool.Reader.
func (r *records) Cursor(ring pool.Ring) (int64, bool, error) {
	at, ok := r.cursors[ring]
	return at, ok, nil
}

// Answered implements pool.Reader.
func (r *records) Answered(service, request string) ([]*pool.Record, error) {
	var answered []*pool.Record
	for _, g := range r.requests[requestKey{service, request}] {
		record := r.latest[g.key]
		if record.Lease.Secret != g.secret {
			record = nil
		}
		answered = append(answered, record)
	}
	return answered, nil
}

// Records implements pool.Reader.
func (r *records) Records(keys []pool.Key) ([]*pool.Record, error) {
	found := make([]*pool.Record, len(keys))
	for i, key := range keys {
		found[i] = r.latest[key]
	}
	return found, nil
}

// Taken implements pool.Reader.
func (r *records) Taken(levels []int, keys []pool.Key) ([]pool.Taken, error) {
	taken := make([]pool.Taken, len(keys))
	for i, key := range keys {
		taken[i] = pool.Taken{Own: r.latest[key], Others: r.finer(levels, key)}
		for _, coarser := range key.Coarser(levels) {
			if other := r.latest[coarser]; other != nil {
				taken[i].Others = max(taken[i].Others, other.End)
			}
		}
	}
	return taken, nil
}

// finer is the greatest end of the records of finer slots inside.
func (r *records) finer(levels []int, key pool.Key) (end int64) {
	if !key.HasFiner(levels) {
		return 0
	}
	for other, record := range r.latest {
		if other.BitSeq < key.BitSeq && key.Slot().Overlaps(other.Slot()) {
			end = max(end, record.End)
		}
	}
	return end
}

// History implements pool.Reader.
func (r *records) History(keys []pool.Key, _ int64) ([]pool.Record, error) {
	var grants []pool.Record
	for _, record := range r.history {
		if slices.Contains(keys, record.Key()) {
			grants = append(grants, *record)
		}
	}
	return grants, nil
}

// write carries out a change.
func (r *records) write(c pool.Change) {
	if c.Create != nil {
		r.known = pool.Pool{Exists: true, Timeline: *c.Create}
		r.Line = pool.NewLine(pool.EmptyLine(*c.Create), nil)
	}
	if c.Levels != nil {
		r.known.Levels = c.Levels
	}
	for _, g := range c.Grants {
		r.latest[g.Key()] = &g
		r.history = append(r.history, &g)
		if g.Request != "" {
			key := requestKey{g.Service, g.Request}
			r.requests[key] = append(r.requests[key], grant{g.Key(), g.Lease.Secret})
		}
	}
	for _, ended := range c.Ended {
		*r.latest[ended.Key()] = ended // which the history shares
	}
	if c.Cursor != nil {
		r.cursors[c.Cursor.Ring] = c.Cursor.MachineID
	}
	if r.Line != nil {
		r.Apply(c)
	}
}

func (r *records) count(names ...string) {
	for _, name := range names {
		r.counters[name]++
	}
}

// Provider grants from a Store on the terms of its services.
type Provider struct {
	provider.Lacking
	store    *Store
	services provider.Services
	joined   map[string]bool // pools that have counted this client; store.mu is held

	closeOnce sync.Once
	closed    chan struct{}
}

var _ provider.Provider = (*Provider)(nil)

// FromURL opens memory:, a store of its own. The URL's parameters set the terms
// of services that named does not have.
func FromURL(u *url.URL, named map[string]provider.Terms, nowMS func() int64) (*Provider, error) {
	if u.Opaque != "" || u.Host != "" || u.Path != "" {
		return nil, errors.New("memory: has no path; parameters follow after '?'")
	}
	q, err := connurl.ParseQuery(u.RawQuery, provider.TermsParams())
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
	return &Provider{Lacking: "memory", store: store, services: services, joined: map[string]bool{}, closed: make(chan struct{})}, nil
}

// Info implements provider.Provider.
func (p *Provider) Info() provider.Info {
	return provider.Info{Name: "memory", URL: "memory:", Scope: provider.ScopeUnverified, Coordinated: true, History: "all grants of its process",
		Can: provider.Can{Verify: true, List: true, Extend: true, Locate: true, Count: true, Init: true, Fence: true},
	}
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
	r, m, done := p.enter(terms.Pool, true)
	defer done()
	leases, change, err := pool.Acquire(r, m, terms, req)
	p.store.write(r, m, change)
	counted := pool.Counted(err)
	r.count(counted...)
	if len(counted) > 0 && (req.Client == provider.NewClient || req.Client == provider.OwnClient && !p.joined[terms.Pool]) {
		p.joined[terms.Pool] = p.joined[terms.Pool] || req.Client == provider.OwnClient
		r.count(provider.CountClients)
	}
	return leases, err
}

// enter takes the store's lock, which done gives back. grants says that the operation
// may move an end to a later time. A new ring begins at its lowest machine ID, so that
// tests can count on it.
func (p *Provider) enter(name string, grants bool) (r *records, m pool.Moment, done func()) {
	s := p.store
	s.mu.Lock()
	now, longest := s.nowMS(), p.services.LongestMS()
	if s.fence.unnoticed {
		s.fence.hold(now, longest)
	}
	if grants {
		s.fence.admit(longest)
	}
	r = s.pools[name]
	if r == nil {
		r = newRecords()
		s.pools[name] = r
	}
	return r, pool.Moment{NowMS: now, Fence: s.fence.at(now), Random: func(n int64) int64 { return n - 1 }}, s.mu.Unlock
}

// write carries out a change of a pool.
func (s *Store) write(r *records, m pool.Moment, c pool.Change) {
	r.write(c)
	for _, granted := range slices.Concat(c.Grants, c.Ended) {
		s.fence.latestMS, s.fence.lastMS = max(s.fence.latestMS, granted.End), max(s.fence.lastMS, m.NowMS)
	}
}

// Release implements provider.Provider.
func (p *Provider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	if err := p.begin(ctx); err != nil {
		return err
	}
	r, m, done := p.enter(p.services.Of(req.Service).Pool, false)
	defer done()
	change, err := pool.Release(r, m, req)
	p.store.write(r, m, change)
	return err
}

// Extend implements provider.Provider.
func (p *Provider) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	if err := p.begin(ctx); err != nil {
		return lease.Lease{}, err
	}
	terms := p.services.Of(req.Service)
	r, m, done := p.enter(terms.Pool, true)
	defer done()
	longer, change, err := pool.Extend(r, m, terms, req)
	p.store.write(r, m, change)
	r.count(pool.CountedExtend(err)...)
	return longer, err
}

// Verify implements provider.Provider.
func (p *Provider) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	r, m, done := p.enter(p.services.Of(service).Pool, false)
	defer done()
	return pool.Verify(r, m.Fence != nil, claims)
}

// Locate implements provider.Provider. It knows every grant.
func (p *Provider) Locate(ctx context.Context, service string, low, atMS int64) ([]provider.Record, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	r, _, done := p.enter(p.services.Of(service).Pool, false)
	defer done()
	return pool.Locate(r, low, atMS)
}

// List implements provider.Provider.
func (p *Provider) List(ctx context.Context, service string) ([]provider.Record, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	r, _, done := p.enter(p.services.Of(service).Pool, false)
	defer done()
	list := make([]provider.Record, 0, len(r.latest))
	for _, record := range r.latest {
		list = append(list, record.Shown())
	}
	slices.SortFunc(list, provider.CompareRecords)
	return list, nil
}

// Counters implements provider.Provider.
func (p *Provider) Counters(ctx context.Context, service string) (map[string]int64, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	r, _, done := p.enter(p.services.Of(service).Pool, false)
	defer done()
	counted := provider.NoCounts()
	maps.Copy(counted, r.counters)
	return counted, nil
}

// Fence implements provider.Provider.
func (p *Provider) Fence(ctx context.Context) (*provider.FencedError, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	s := p.store
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.nowMS()
	s.fence.hold(now, p.services.LongestMS())
	return s.fence.at(now), nil
}

// Init implements provider.Provider, for all pools of the store.
func (p *Provider) Init(ctx context.Context, service string) error {
	if err := p.begin(ctx); err != nil {
		return err
	}
	terms := p.services.Of(service)
	r, _, done := p.enter(terms.Pool, false)
	defer done()
	if r.known.Exists && r.known.Timeline != terms.Timeline {
		return provider.TimelineError(terms.Pool, r.known.Timeline, terms.Timeline)
	}
	p.store.fence.fromMS, p.store.fence.untilMS = 0, 0
	return nil
}

// Fenced implements provider.Provider.
func (p *Provider) Fenced() *provider.FencedError {
	s := p.store
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fence.at(s.nowMS())
}

// Look implements provider.Provider.
func (p *Provider) Look(ctx context.Context) error {
	_, err := p.List(ctx, "")
	return err
}
