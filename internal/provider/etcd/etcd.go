package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
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

	mu    sync.Mutex
	pools map[string]*knownPool // by name

	// random is where a new ring begins, a number from 0 to n-1; tests replace it.
	random func(n int64) int64
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
		pools: map[string]*knownPool{}, random: rand.Int64N, at: func(string) error { return nil }, contended: func() {},
	}
	if p.nowMS == nil {
		p.nowMS = func() int64 { return time.Now().UnixMilli() }
	}
	if p.cfg.Host == "" {
		p.cfg.Host, _ = os.Hostname() // without one, all such hosts count as one
	}
	return p, nil
}

// Info implements provider.Provider.
func (p *Provider) Info() provider.Info { return p.cfg.Info() }

// Close implements provider.Provider. Calls under way fail.
func (p *Provider) Close() error { return p.conn.Close() }

// Reach says why etcd cannot be reached now, or why nothing can be granted: a
// pool's recorded timeline contradicts the terms (it wraps provider.ErrInvalid).
func (p *Provider) Reach(ctx context.Context) error {
	for _, t := range p.services.All() {
		resp, err := p.conn.Get(ctx, spaceOf(p.cfg.Prefix, t.Pool).pool())
		if err != nil {
			return err
		}
		for _, kv := range resp.Kvs {
			r, err := decode[poolRecord](kv.Key, kv.Value)
			if err != nil {
				return p.explain(err)
			}
			if r.timeline() != t.Timeline {
				return provider.TimelineError(t.Pool, r.timeline(), t.Timeline)
			}
		}
	}
	return nil
}

// explain names the store in an error.
func (p *Provider) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", p.cfg.Place(), err)
}

// begin reports why an operation cannot start.
func (p *Provider) begin(ctx context.Context) error {
	return provider.NotSent(p.explain(p.conn.Usable(ctx)))
}

// knownPool is what this process knows of a pool. All of it is a hint: the transaction of
// a grant compares what the grant rests on.
type knownPool struct {
	name     string
	keys     space
	timeline snowflake.Timeline // of the services that are granted from it
	tally    *tally
	scanning chan struct{} // held during a search for free slots

	mu     sync.Mutex
	rev    int64 // of the store, as last seen
	queues map[pool.Ring]*queue
	busy   map[pool.Key]bool // slots that this process is trying to get
	// begun and done count this process's changes of slots: those under way or carried
	// out, and those carried out.
	begun, done int64
	voice       voice
}

func (p *Provider) pool(t provider.Terms) *knownPool {
	p.mu.Lock()
	defer p.mu.Unlock()
	pl, ok := p.pools[t.Pool]
	if !ok {
		pl = &knownPool{
			name: t.Pool, keys: spaceOf(p.cfg.Prefix, t.Pool), timeline: t.Timeline, tally: newTally(),
			scanning: make(chan struct{}, 1), queues: map[pool.Ring]*queue{}, busy: map[pool.Key]bool{},
		}
		p.pools[t.Pool] = pl
	}
	return pl
}

// change counts a change of slots, unless it was not carried out.
func (pl *knownPool) change(carryOut func() (done bool, err error)) (done bool, err error) {
	pl.mu.Lock()
	pl.begun++
	pl.mu.Unlock()
	done, err = carryOut()
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if done {
		pl.done++
	} else {
		pl.begun--
	}
	return done, err
}

func (pl *knownPool) dropQueues() {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	clear(pl.queues)
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
	a := p.acquisition(terms, req, now)
	leases, err := a.run(ctx)
	p.countAcquire(ctx, a.pool, req, a.repeated, err)
	return leases, err
}
