package pool

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/record"
)

// Config says where leases are recorded, and the terms of grants.
type Config struct {
	// Records is an area of its own, as AreaOf says.
	Records  record.Store
	Services provider.Services
	// Info describes the provider. Can follows from the pool.
	Info provider.Info
	// Close closes the layer below the records; it may be nil.
	Close func() error
	// Random is a number from 0 to n-1, by which machine IDs are chosen; nil: by chance.
	Random func(n int64) int64
}

// AreaOf is the area of leases for a process that grants on these terms.
func AreaOf(services provider.Services) record.Area {
	return record.Area{Name: "leases", MaxGrantMS: services.LongestMS(), FollowsClock: true}
}

// Provider grants leases from a record store.
type Provider struct {
	provider.Lacking
	cfg   Config
	shard int64 // of the counters

	seen   atomic.Pointer[sight]
	lister chan struct{} // one call at a time lists a pool

	mu     sync.Mutex
	closed bool
	bases  map[string]layout   // by pool, as far as is known
	counts map[string]counts   // by pool: counts not written yet
	joined map[string]bool     // pools that have counted this process
	lists  map[string]*listing // by pool: the ends of all blocks
}

var _ provider.Provider = (*Provider)(nil)

// New returns a provider. It does no I/O.
func New(cfg Config) (*Provider, error) {
	if err := cfg.Services.Validate(); err != nil {
		return nil, err
	}
	if cfg.Random == nil {
		cfg.Random = byChance
	}
	p := &Provider{
		Lacking: provider.Lacking(cfg.Info.Name), cfg: cfg, bases: map[string]layout{},
		counts: map[string]counts{}, joined: map[string]bool{}, lists: map[string]*listing{}, lister: make(chan struct{}, 1),
	}
	p.shard = cfg.Random(shards)
	return p, nil
}

// byChance is a random number from 0 to n-1. It need not be even.
func byChance(n int64) int64 {
	var b [8]byte
	rand.Read(b[:]) // never fails (crypto/rand ends the program instead)
	return int64(binary.NativeEndian.Uint64(b[:]) % uint64(n))
}

// Info implements provider.Provider.
func (p *Provider) Info() provider.Info {
	info := p.cfg.Info
	info.Coordinated = true
	return info
}

// Close implements provider.Provider.
func (p *Provider) Close() error {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if closed || p.cfg.Close == nil {
		return nil
	}
	return p.cfg.Close()
}

// begin reports why an operation cannot start.
func (p *Provider) begin(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return provider.NotSent(fmt.Errorf("the provider %s is closed", p.cfg.Info.Name))
	}
	return provider.NotSent(ctx.Err())
}

// busyWait is how long a caller waits where too many ask at the same time.
const busyWait = time.Second

// failure is an error of the records as callers of a provider know it.
func failure(err error) error {
	if errors.Is(err, record.ErrBusy) || errors.Is(err, record.ErrCrowded) {
		return &provider.BusyError{RetryAfter: busyWait, Reason: err.Error()}
	}
	return err
}

// sight is the fence as it was seen last.
type sight struct {
	record.Fence
	nowMS int64     // by the store
	at    time.Time // by this process
}

// note remembers the fence, and returns the refusal while it holds.
func (p *Provider) note(v record.View) *provider.FencedError {
	p.seen.Store(&sight{v.Fence, v.NowMS, time.Now()})
	return refusal(v.Fence, v.NowMS)
}

func refusal(f record.Fence, nowMS int64) *provider.FencedError {
	if nowMS >= f.UntilMS {
		return nil
	}
	return &provider.FencedError{UntilMS: f.UntilMS, Reason: f.Reason}
}

// Fenced implements provider.Provider.
func (p *Provider) Fenced() *provider.FencedError {
	s := p.seen.Load()
	if s == nil {
		return nil
	}
	return refusal(s.Fence, s.nowMS+time.Since(s.at).Milliseconds())
}

// Fence implements provider.Provider.
func (p *Provider) Fence(ctx context.Context) (*provider.FencedError, error) {
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	if err := p.cfg.Records.Fence(ctx); err != nil {
		return nil, failure(err)
	}
	if _, err := p.read(ctx, p.cfg.Services.Default, nil); err != nil {
		return nil, err
	}
	return p.Fenced(), nil
}

// Ready implements provider.Provider. A pool that does not grant on the terms is not ready.
func (p *Provider) Ready(ctx context.Context) error {
	for _, t := range p.cfg.Services.All() {
		err := p.checkTerms(ctx, t)
		if errors.Is(err, provider.ErrInvalid) {
			err = fmt.Errorf("%s: %w", p.cfg.Info.URL, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkTerms reports, wrapping provider.ErrInvalid, that a pool does not grant on these terms.
func (p *Provider) checkTerms(ctx context.Context, t provider.Terms) error {
	s, err := p.read(ctx, t, nil)
	if err != nil || !s.exists {
		return err
	}
	return s.head.check(t)
}

// base is the layout of the terms' pool, as far as is known: else the terms' own layout, which
// will be the first one.
func (p *Provider) base(t provider.Terms) head {
	p.mu.Lock()
	defer p.mu.Unlock()
	of, ok := p.bases[t.Pool]
	if !ok {
		of = layout{bitSeq: t.BitSeq}
	}
	return head{timeline: t.Timeline, layout: of}
}

// learn remembers the layout of a pool.
func (p *Provider) learn(pool string, of layout) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bases[pool] = of
	delete(p.lists, pool)
}

// seenPool is a pool as one view shows it.
type seenPool struct {
	record.View
	name   keys
	place  string // of the store
	head   head
	exists bool
	fenced *provider.FencedError
}

// otherBase: the pool has other blocks than the asked ones.
var errOtherBase = errors.New("the pool's layout is another one than was known")

// seePool reads the head in a view. The error is errOtherBase where the keys of the ask were
// made for another layout than the pool has.
func (p *Provider) seePool(v record.View, t provider.Terms, base head) (s seenPool, err error) {
	s = seenPool{View: v, name: base.keys(t.Pool), place: p.cfg.Info.URL, head: base, fenced: p.note(v)}
	value := v.Records[s.name.head()].Value
	if value == nil {
		return s, nil
	}
	s.exists = true
	if s.head, err = parseHead(value); err != nil {
		return s, unreadable(s.place, s.name.head(), err)
	}
	if s.head.layout != base.layout {
		p.learn(t.Pool, s.head.layout)
		return s, errOtherBase
	}
	return s, nil
}

// unmarked is the write that tells an Init, if one looks at the blocks, that a block changes.
func (s seenPool) unmarked() []record.Write {
	if s.head.mark == (mark{}) {
		return nil
	}
	after := s.head
	after.mark = mark{}
	return []record.Write{{Key: s.name.head(), Value: after.value()}}
}

// grants are those of a record, of a block or a past.
func (s seenPool) grants(key string) ([]grant, error) {
	all, err := decode(s.Records[key].Value)
	return all, unreadable(s.place, key, err)
}

// baseTries is how often an operation begins anew because the pool has another layout than was
// known. It never changes but by Init, and when a store loses everything.
const baseTries = 3

// based calls do until the layout that it is told of is the pool's.
func (p *Provider) based(t provider.Terms, do func(base head) error) (err error) {
	for range baseTries {
		if err = do(p.base(t)); !errors.Is(err, errOtherBase) {
			return err
		}
	}
	return err
}

// read shows the pool, and the records that named returns.
func (p *Provider) read(ctx context.Context, t provider.Terms, named func(h head) []string) (s seenPool, err error) {
	if err := p.begin(ctx); err != nil {
		return s, err
	}
	err = p.based(t, func(base head) error {
		ask := record.Ask{Keys: []string{HeadKey(t.Pool)}}
		if named != nil {
			ask.Keys = append(ask.Keys, named(base)...)
		}
		v, err := p.cfg.Records.Read(ctx, ask)
		if err != nil {
			return failure(err)
		}
		s, err = p.seePool(v, t, base)
		return err
	})
	return s, err
}

// run is one run of a rule.
type run[T any] struct {
	result T
	wrote  bool // something
	err    error
}

// errUndecided: no run of a change's rule has decided.
var errUndecided = errors.New("undecided")

// change carries out a rule, and returns its last run. Where the change has failed, another one may
// still be under way.
func change[T any](ctx context.Context, records record.Store, ask record.Ask, rule func(record.View) (T, []record.Write, error)) (run[T], error) {
	var latest atomic.Pointer[run[T]]
	_, err := records.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		result, writes, err := rule(v)
		latest.Store(&run[T]{result, len(writes) > 0, err})
		return writes, err
	})
	return *cmp.Or(latest.Load(), &run[T]{err: errUndecided}), err
}

// add adds a name that is not there yet.
func add(names []string, name string) []string {
	if slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}
