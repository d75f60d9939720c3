package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"time"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
)

// Config says which file to use and what to grant from it.
type Config struct {
	Path     string // absolute
	Services provider.Services
	NowMS    func() int64 // the provider's clock in Unix ms; nil means the wall clock
	LiveDir  string       // where the file's watermark is; see package sqlitefile
	// Random draws from 0 to n-1, to say where a new ring begins; nil: by chance.
	Random func(n int64) int64
	// At is called at each step of a write, as in sqlitefile.Options. Only tests set it.
	At func(step string) error
}

// Provider grants leases from one SQLite file.
type Provider struct {
	provider.Lacking
	path     string
	services provider.Services
	file     *sqlitefile.File
	random   func(n int64) int64
	joined   map[string]bool // pools that have counted this client; the file's worker has it
	// at is called at the named steps of a write. Only tests set it: there a
	// process ends itself, or an operation fails.
	at func(step string) error
}

var _ provider.Provider = (*Provider)(nil)

// ParseURL reads sqlite:PATH. The URL's parameters set the terms of services
// that named does not have. It does not touch the file.
func ParseURL(u *url.URL, named map[string]provider.Terms, nowMS func() int64) (Config, error) {
	q, err := connurl.ParseQuery(u.RawQuery, provider.TermsParams())
	if err != nil {
		return Config{}, err
	}
	terms, err := provider.ParseTerms(q)
	if err != nil {
		return Config{}, err
	}
	path, err := sqlitefile.PathOf(u, "/var/lib/kazahana/leases.db")
	if err != nil {
		return Config{}, err
	}
	cfg := Config{Path: path, Services: provider.Services{Default: terms, Named: named}, NowMS: nowMS}
	return cfg, cfg.Services.Validate()
}

// Open opens the file, and creates it with its directory where it does not
// exist. It waits for other processes that hold the file's lock until ctx ends.
//
// Errors wrap provider.ErrInvalid when the file's pool has another timeline
// than the services have.
func Open(ctx context.Context, cfg Config) (*Provider, error) {
	if err := cfg.Services.Validate(); err != nil {
		return nil, err
	}
	p := &Provider{
		Lacking: "sqlite", path: cfg.Path, services: cfg.Services,
		random: cfg.Random, at: cfg.At,
		joined: map[string]bool{},
	}
	if p.random == nil {
		p.random = rand.Int64N
	}
	if p.at == nil {
		p.at = func(string) error { return nil }
	}
	var err error
	p.file, err = sqlitefile.Open(ctx, cfg.Path, &kind, sqlitefile.Options{
		NowMS: cfg.NowMS, LiveDir: cfg.LiveDir, TermMS: p.services.LongestMS(),
		Check: p.checkTimelines, At: func(step string) error { return p.at(step) },
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Check returns the error that Open would have about the file's pools, and changes nothing.
func (c Config) Check(ctx context.Context) error {
	return sqlitefile.ReadOnly(ctx, c.Path, false, (&Provider{services: c.Services}).checkTimelines)
}

// checkTimelines compares the services' terms with the pools of the file.
func (p *Provider) checkTimelines(s *sqlitefile.Session) error {
	for _, t := range p.services.All() {
		known, err := (&reader{Session: s, name: t.Pool}).Pool()
		if err != nil {
			return err
		}
		if known.Exists && known.Timeline != t.Timeline {
			return provider.TimelineError(t.Pool, known.Timeline, t.Timeline)
		}
	}
	return nil
}

// Info describes the provider that Open opens.
func (c Config) Info() provider.Info {
	url := sqlitefile.URL(c.Path)
	if ids := c.Services.Default.IDs; !ids.IsAll() {
		url += "?ids=" + ids.String()
	}
	return provider.Info{
		Name: "sqlite", URL: url, Scope: provider.ScopeHost, Coordinated: true,
		History: fmt.Sprintf("grants for %d days after their end", historyKept/(24*time.Hour)),
		Can:     provider.Can{Verify: true, List: true, Extend: true, Locate: true, Count: true, Init: true, Fence: true},
	}
}

// Info implements provider.Provider.
func (p *Provider) Info() provider.Info {
	return Config{Path: p.path, Services: p.services}.Info()
}

// Close implements provider.Provider. It waits for the operation under way.
func (p *Provider) Close() error { return p.file.Close() }

func (p *Provider) write(ctx context.Context, op func(*transaction) error, committed func()) error {
	return p.file.Write(ctx, func(tx *sqlitefile.Tx) error { return explained(op(&transaction{tx, p.random})) }, committed)
}

// Acquire implements provider.Provider.
func (p *Provider) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	terms := p.services.Of(req.Service)
	var leases []lease.Lease
	err := p.write(ctx, func(t *transaction) (err error) {
		r := t.reader(terms.Pool)
		var change pool.Change
		leases, change, err = pool.Acquire(r, t.moment(), terms, req)
		return t.finish(r, change, err, p.counted(terms.Pool, req, err))
	}, func() { p.joined[terms.Pool] = p.joined[terms.Pool] || req.Client == provider.OwnClient })
	if err != nil {
		return nil, err
	}
	return leases, nil
}

// counted is the counters that go up. This process counts with its first grant, and
// is then remembered.
func (p *Provider) counted(name string, req provider.AcquireRequest, err error) []string {
	names := pool.Counted(err)
	if req.Client == provider.NewClient || req.Client == provider.OwnClient && err == nil && !p.joined[name] {
		names = append(names, provider.CountClients)
	}
	return names
}

// finish writes the change, and what is counted. A pool that is full and the fence
// are answers that are committed; other refusals undo the operation.
func (t *transaction) finish(r *reader, change pool.Change, outcome error, counted []string) error {
	var full *provider.FullError
	switch {
	case outcome != nil && !errors.As(outcome, &full):
		return outcome
	}
	err := t.write(r, change)
	if err == nil {
		err = t.count(r.name, counted...)
	}
	if err == nil && outcome != nil {
		err = sqlitefile.Answer(outcome)
	}
	return err
}

// Release implements provider.Provider.
func (p *Provider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	name := p.services.Of(req.Service).Pool
	return p.write(ctx, func(t *transaction) error {
		r := t.reader(name)
		change, err := pool.Release(r, t.moment(), req)
		if err == nil {
			err = t.write(r, change)
		}
		return err
	}, nil)
}

// Extend implements provider.Provider.
func (p *Provider) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	terms := p.services.Of(req.Service)
	var longer lease.Lease
	// A refusal is committed too, because it is counted.
	var refusal error
	err := p.write(ctx, func(t *transaction) error {
		r := t.reader(terms.Pool)
		var change pool.Change
		longer, change, refusal = pool.Extend(r, t.moment(), terms, req)
		counted := pool.CountedExtend(refusal)
		if len(counted) == 0 {
			return refusal
		}
		if err := t.write(r, change); err != nil {
			return err
		}
		return t.count(terms.Pool, counted...)
	}, nil)
	if err != nil {
		return lease.Lease{}, err // the operation may still be running
	}
	return longer, refusal
}

// Locate implements provider.Provider. It knows the grants that have ended in
// the last 30 days, and those that have not.
func (p *Provider) Locate(ctx context.Context, service string, low, atMS int64) ([]provider.Record, error) {
	name := p.services.Of(service).Pool
	return sqlitefile.Read(ctx, p.file, func(s *sqlitefile.Session) ([]provider.Record, error) {
		return pool.Locate(&reader{Session: s, name: name}, low, atMS)
	})
}

// Verify implements provider.Provider.
func (p *Provider) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	name := p.services.Of(service).Pool
	return sqlitefile.Read(ctx, p.file, func(s *sqlitefile.Session) ([]int, error) {
		return pool.Verify(&reader{Session: s, name: name}, s.Fence().Holds(p.file.NowMS()), claims)
	})
}

// Counters implements provider.Provider.
func (p *Provider) Counters(ctx context.Context, service string) (map[string]int64, error) {
	name := p.services.Of(service).Pool
	return sqlitefile.Read(ctx, p.file, func(s *sqlitefile.Session) (map[string]int64, error) { return counters(s, name) })
}

// List implements provider.Provider. It reads page by page, so that grants are
// not held up; records that change meanwhile may be of either state.
func (p *Provider) List(ctx context.Context, service string) ([]provider.Record, error) {
	name := p.services.Of(service).Pool
	var all []provider.Record
	for {
		page, err := sqlitefile.Read(ctx, p.file, func(s *sqlitefile.Session) ([]provider.Record, error) {
			return (&reader{Session: s, name: name}).list(all)
		})
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			return all, nil
		}
		all = append(all, page...)
	}
}
