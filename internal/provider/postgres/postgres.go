package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
)

// Provider grants leases from tables of a PostgreSQL server.
type Provider struct {
	provider.Lacking
	cfg    Config
	client *postgresconn.Client
	store  *postgresconn.Store

	// random is where a new ring begins, a number from 0 to n-1; tests replace it.
	random func(n int64) int64
	// sending is called before a release is sent; tests only.
	sending func()

	mu     sync.Mutex
	joined map[string]bool // the pools that have counted this process
}

var _ provider.Provider = (*Provider)(nil)

// Open returns a provider. It reaches out to nothing yet.
func Open(cfg Config) (*Provider, error) {
	if err := cfg.Services.Validate(); err != nil {
		return nil, err
	}
	client, err := postgresconn.Open(cfg.Config)
	if err != nil {
		return nil, err
	}
	store := client.Use(postgresconn.Kind{Name: "leases", Tables: tables, LongestMS: cfg.Services.LongestMS()})
	return &Provider{Lacking: "postgres", cfg: cfg, client: client, store: store, random: rand.Int64N, sending: func() {}, joined: map[string]bool{}}, nil
}

// Info implements provider.Provider.
func (p *Provider) Info() provider.Info { return p.cfg.Info() }

// Close implements provider.Provider.
func (p *Provider) Close() error { return p.client.Close() }

// moment is what the rules of leases are told of the store.
func (p *Provider) moment(m postgresconn.Moment) pool.Moment {
	return pool.Moment{NowMS: m.NowMS, Fence: fencedError(m), Random: p.random}
}

// fencedError is the refusal while the fence holds, nil when it does not.
func fencedError(m postgresconn.Moment) *provider.FencedError {
	if !m.Fence.Holds(m.NowMS) {
		return nil
	}
	return &provider.FencedError{UntilMS: m.Fence.UntilMS, Reason: m.Fence.Reason}
}

// change runs a rule under the pool's lock. What decide queues is carried out even if
// the rule refuses, which it says in another way. A line that contradicts the records is
// made anew, once.
func (p *Provider) change(ctx context.Context, name string, begin func(*reader, *pgx.Batch), decide func(*reader, pool.Moment) error) error {
	err := p.changeOnce(ctx, name, begin, decide)
	if errors.Is(err, pool.ErrInconsistent) {
		if err = p.changeOnce(ctx, name, (*reader).readMarks, (*reader).renewLine); err == nil {
			err = p.changeOnce(ctx, name, begin, decide)
		}
	}
	return err
}

func (p *Provider) changeOnce(ctx context.Context, name string, begin func(*reader, *pgx.Batch), decide func(*reader, pool.Moment) error) error {
	r := &reader{ctx: ctx, name: name}
	return p.store.Change(ctx, []string{name}, func(b *pgx.Batch) {
		*r = reader{ctx: ctx, name: name}
		b.Queue("SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || '/' || $1, 2))", name)
		begin(r, b)
	}, func(tx *postgresconn.Tx) error {
		r.tx = tx
		return decide(r, p.moment(tx.Moment))
	})
}

// Acquire implements provider.Provider.
func (p *Provider) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	terms := p.cfg.Services.Of(req.Service)
	var leases []lease.Lease
	var refusal error
	joins := false
	err := p.change(ctx, terms.Pool, func(r *reader, b *pgx.Batch) {
		r.readAcquire(b, terms, req)
	}, func(r *reader, m pool.Moment) error {
		var c pool.Change
		leases, c, refusal = pool.Acquire(r, m, terms, req)
		counted := pool.Counted(refusal)
		if len(counted) == 0 {
			return refusal
		}
		if joins = p.joins(terms.Pool, req.Client); joins {
			counted = append(counted, provider.CountClients)
		}
		r.write(r.tx, c)
		r.count(r.tx, counted)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if joins && req.Client == provider.OwnClient {
		p.mu.Lock()
		p.joined[terms.Pool] = true
		p.mu.Unlock()
	}
	return leases, refusal
}

// joins reports whether the client was not counted yet.
func (p *Provider) joins(name string, c provider.Client) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return c == provider.NewClient || c == provider.OwnClient && !p.joined[name]
}

// Release implements provider.Provider.
func (p *Provider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	return p.change(ctx, p.cfg.Services.Of(req.Service).Pool, (*reader).readPool, func(r *reader, m pool.Moment) error {
		c, err := pool.Release(r, m, req)
		if err == nil {
			p.sending()
			r.write(r.tx, c)
		}
		return err
	})
}

// Extend implements provider.Provider.
func (p *Provider) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	terms := p.cfg.Services.Of(req.Service)
	var longer lease.Lease
	var refusal error
	err := p.change(ctx, terms.Pool, (*reader).readPool, func(r *reader, m pool.Moment) error {
		var c pool.Change
		longer, c, refusal = pool.Extend(r, m, terms, req)
		counted := pool.CountedExtend(refusal)
		if len(counted) == 0 {
			return refusal
		}
		r.write(r.tx, c)
		r.count(r.tx, counted)
		return nil
	})
	if err != nil {
		return lease.Lease{}, err
	}
	return longer, refusal
}

// Verify implements provider.Provider.
func (p *Provider) Verify(ctx context.Context, service string, claims []provider.Claim) ([]int, error) {
	terms := p.cfg.Services.Of(service)
	starts, bitSeqs := arrays(claimsOf(terms, claims))
	r := &reader{name: terms.Pool}
	m, err := p.store.Look(ctx, func(b *pgx.Batch) {
		r.readPool(b)
		into(b, &r.records, record, recordsSQL, r.name, starts, bitSeqs)
	})
	if err != nil {
		return nil, err
	}
	if r.known.Exists && r.known.Timeline != terms.Timeline {
		return nil, provider.TimelineError(terms.Pool, r.known.Timeline, terms.Timeline)
	}
	return pool.Verify(r, fencedError(m) != nil, claims)
}

// Locate implements provider.Provider.
func (p *Provider) Locate(ctx context.Context, service string, low, atMS int64) ([]provider.Record, error) {
	r := &reader{name: p.cfg.Services.Of(service).Pool}
	if low < 0 {
		return nil, nil
	}
	var found []*pool.Record
	_, err := p.store.Look(ctx, func(b *pgx.Batch) {
		r.readPool(b)
		into(b, &found, record, "SELECT "+historyColumns+` FROM pool p CROSS JOIN unnest(p.levels) level
			JOIN history t ON (t.pool, t.start, t.bit_seq) = (p.name, ($2::bigint >> level) << level, level)
			WHERE p.name = $1 AND t.created <= $3 AND t.expired > $3`, r.name, low, atMS)
	})
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		r.history = append(r.history, *f)
	}
	return pool.Locate(r, low, atMS)
}

// List implements provider.Provider.
func (p *Provider) List(ctx context.Context, service string) ([]provider.Record, error) {
	var found []*pool.Record
	_, err := p.store.Look(ctx, func(b *pgx.Batch) {
		into(b, &found, record, "SELECT "+columns+" FROM slot t JOIN pool p ON p.name = t.pool WHERE t.pool = $1 ORDER BY t.start, t.bit_seq", p.cfg.Services.Of(service).Pool)
	})
	if err != nil {
		return nil, err
	}
	list := make([]provider.Record, len(found))
	for i, f := range found {
		list[i] = f.Shown()
	}
	return list, nil
}

// Counters implements provider.Provider.
func (p *Provider) Counters(ctx context.Context, service string) (map[string]int64, error) {
	counted := provider.NoCounts()
	_, err := p.store.Look(ctx, func(b *pgx.Batch) {
		b.Queue("SELECT name, n FROM counter WHERE pool = $1", p.cfg.Services.Of(service).Pool).Query(func(rows pgx.Rows) error {
			var name string
			var n int64
			_, err := pgx.ForEachRow(rows, []any{&name, &n}, func() error { counted[name] = n; return nil })
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return counted, nil
}

// Init implements provider.Provider, for all pools of the schema.
func (p *Provider) Init(ctx context.Context, _ string) error { return p.store.Init(ctx) }

// Fence implements provider.Provider.
func (p *Provider) Fence(ctx context.Context) (*provider.FencedError, error) {
	f, err := p.store.Fence(ctx)
	if err != nil {
		return nil, err
	}
	return &provider.FencedError{UntilMS: f.UntilMS, Reason: f.Reason}, nil
}

// Fenced implements provider.Provider.
func (p *Provider) Fenced() *provider.FencedError { return fencedError(p.store.Known()) }

// Look implements provider.Provider.
func (p *Provider) Look(ctx context.Context) error {
	_, err := p.store.Look(ctx, nil)
	return err
}
