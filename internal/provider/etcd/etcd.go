package etcd

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	etcdconn "github.com/kazahana/kazahana/internal/conn/etcd"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Provider grants leases from one etcd cluster.
type Provider struct {
	provider.Lacking
	cfg      Config
	services provider.Services
	nowMS    func() int64
	conn     *etcdconn.Client

	mu     sync.Mutex
	pools  map[string]*knownPool // by name
	closed bool                  // no view may begin any more

	// lifetime ends with Close, and the views with it.
	lifetime  context.Context
	end       context.CancelFunc
	views     sync.WaitGroup
	closeOnce sync.Once
	closeErr  error

	// at is called at the named steps. Only tests set it.
	at func(step string) error
	// contended counts grants that lost a race; tests and benchmarks read it.
	contended func()
}

var _ provider.Provider = (*Provider)(nil)

// Open prepares the connections to etcd. It reaches out to nothing yet.
func Open(cfg Config) (*Provider, error) {
	if err := cfg.Services.Validate(); err != nil {
		return nil, err
	}
	conn, err := etcdconn.Open(cfg.Config)
	if err != nil {
		return nil, err
	}
	p := &Provider{
		Lacking: "etcd", cfg: cfg, services: cfg.Services, nowMS: cfg.NowMS, conn: conn,
		pools: map[string]*knownPool{}, at: func(string) error { return nil }, contended: func() {},
	}
	if p.nowMS == nil {
		p.nowMS = func() int64 { return time.Now().UnixMilli() }
	}
	if p.cfg.Host == "" {
		p.cfg.Host, _ = os.Hostname() // without one, all such hosts count as one
	}
	p.lifetime, p.end = context.WithCancel(context.Background())
	return p, nil
}

// Info implements provider.Provider.
func (p *Provider) Info() provider.Info { return p.cfg.Info() }

// Close implements provider.Provider. Calls under way fail.
func (p *Provider) Close() error {
	p.closeOnce.Do(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.end()
		p.views.Wait()
		p.closeErr = p.conn.Close()
	})
	return p.closeErr
}

// Reach says why etcd cannot be reached now, or why nothing can be granted: a
// pool's recorded timeline contradicts the terms (it wraps provider.ErrInvalid).
func (p *Provider) Reach(ctx context.Context) error {
	all := []provider.Terms{p.services.Default}
	for _, t := range p.services.Named {
		all = append(all, t)
	}
	for _, t := range all {
		var resp *clientv3.GetResponse
		err := p.conn.Call(ctx, func(ctx context.Context) (err error) {
			resp, err = p.conn.KV.Get(ctx, spaceOf(p.cfg.Prefix, t.Pool).pool())
			return err
		})
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			r, err := decode[poolRecord](kv.Key, kv.Value)
			if err != nil {
				return fmt.Errorf("%s: %w", p.cfg.Place(), err)
			}
			if r.timeline() != t.Timeline {
				return provider.TimelineError(t.Pool, r.timeline(), t.Timeline)
			}
		}
	}
	return nil
}

// begin reports why an operation cannot start.
func (p *Provider) begin(ctx context.Context) error {
	if err := p.conn.Usable(ctx); err != nil {
		return provider.NotSent(fmt.Errorf("%s: %w", p.cfg.Place(), err))
	}
	return nil
}

// knownPool is what this process knows of a pool. All of it is a hint: a grant is
// made by a transaction that compares what it rests on.
type knownPool struct {
	name     string
	keys     space
	timeline snowflake.Timeline // of the services that are granted from it

	mu sync.Mutex
	// inFlight is the slots that this process is trying to get right now, by
	// bit_seq and start, so that its own acquires do not race for them.
	inFlight map[int]map[int64]bool
	view     *view // nil while there is none
	voice    voice
	tally    *tally
	// lastUse and noViewBefore decide when it is worth having a view.
	lastUse, noViewBefore time.Time
}

func (p *Provider) pool(t provider.Terms) *knownPool {
	p.mu.Lock()
	defer p.mu.Unlock()
	pl, ok := p.pools[t.Pool]
	if !ok {
		pl = &knownPool{name: t.Pool, keys: spaceOf(p.cfg.Prefix, t.Pool), timeline: t.Timeline, inFlight: map[int]map[int64]bool{}, tally: newTally()}
		p.pools[t.Pool] = pl
	}
	return pl
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
	now := p.nowMS()
	if err := terms.CheckClock(now); err != nil {
		return nil, err
	}
	if req.RequestID == "" {
		// Tries of one call are told from other requests by it too.
		req.RequestID = provider.NewSecret()
	}
	pl := p.pool(terms)
	a := &acquisition{
		p: p, pool: pl, terms: terms, ring: pool.RingOf(terms), req: req, now: now,
		key: pl.keys.request(req.Service, req.RequestID), need: min(terms.LeaseCount(req.ThroughputPerMS), maxLeases),
	}
	leases, err := a.run(ctx)
	p.countAcquire(ctx, pl, req, a.repeated, err)
	return leases, err
}
