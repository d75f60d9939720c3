package sqlite

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	connurl "github.com/kazahana/kazahana/internal/conn/url"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// Config says which file to use and what to grant from it.
type Config struct {
	Path     string // absolute
	Services provider.Services
	NowMS    func() int64 // the provider's clock in Unix ms; nil means the wall clock
	LiveDir  string       // where the file's witness is; see package sqlitefile
}

// Provider grants leases from one SQLite file.
type Provider struct {
	path     string
	services provider.Services
	file     *sqlitefile.File
	joined   map[string]bool // pools that have counted this client; the file's worker has it
	// at is called at the named steps of a write. Only tests set it: there a
	// process ends itself, or an operation fails.
	at func(step string) error
}

var (
	_ provider.Provider    = (*Provider)(nil)
	_ provider.Verifier    = (*Provider)(nil)
	_ provider.Lister      = (*Provider)(nil)
	_ provider.Extender    = (*Provider)(nil)
	_ provider.Locator     = (*Provider)(nil)
	_ provider.Initializer = (*Provider)(nil)
	_ provider.Counter     = (*Provider)(nil)
	_ provider.Fencer      = (*Provider)(nil)
)

// Params returns the parameters that a sqlite: URL takes.
func Params() []string { return provider.TermsParams() }

// ParseURL reads sqlite:PATH. The URL's parameters set the terms of services
// that named does not have. It does not touch the file.
func ParseURL(u *url.URL, named map[string]provider.Terms, nowMS func() int64) (Config, error) {
	q, err := connurl.ParseQuery(u.RawQuery, Params())
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
		path: cfg.Path, services: cfg.Services,
		at:     func(string) error { return nil },
		joined: map[string]bool{},
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

// checkTimelines compares the services' terms with the pools of the file.
func (p *Provider) checkTimelines(s *sqlitefile.Session) error {
	all := []provider.Terms{p.services.Default}
	for _, t := range p.services.Named {
		all = append(all, t)
	}
	for _, t := range all {
		if _, err := findPool(s, t.Pool, &t.Timeline); err != nil && !errors.Is(err, errNoPool) {
			return err
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
	}
}

// Info implements provider.Provider.
func (p *Provider) Info() provider.Info {
	return Config{Path: p.path, Services: p.services}.Info()
}

// Close implements provider.Provider. It waits for the operation under way.
func (p *Provider) Close() error { return p.file.Close() }

// transaction is a write to the lease file under way. Operations are methods of
// it.
type transaction struct{ *sqlitefile.Tx }

func (p *Provider) write(ctx context.Context, op func(*transaction) error, committed func()) error {
	return p.file.Write(ctx, func(tx *sqlitefile.Tx) error { return op(&transaction{tx}) }, committed)
}

// Acquire implements provider.Provider.
func (p *Provider) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	terms := p.services.Of(req.Service)
	var leases []lease.Lease
	err := p.write(ctx, func(t *transaction) (err error) {
		if err := t.admitted(p.services.LongestMS()); err != nil {
			return err
		}
		leases, err = t.acquire(terms, req)
		// This process counts with its first grant, and is then remembered.
		first := req.Client == provider.NewClient || req.Client == provider.OwnClient && err == nil && !p.joined[terms.Pool]
		return t.countAcquire(terms.Pool, first, err)
	}, func() { p.joined[terms.Pool] = p.joined[terms.Pool] || req.Client == provider.OwnClient })
	if err != nil {
		return nil, err
	}
	return leases, nil
}

// Release implements provider.Provider.
func (p *Provider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	pool := p.services.Of(req.Service).Pool
	return p.write(ctx, func(t *transaction) error { return t.release(pool, req) }, nil)
}

// Verify implements provider.Verifier.
func (p *Provider) Verify(ctx context.Context, service string, claims []provider.Claim) (lost []int, err error) {
	pool := p.services.Of(service).Pool
	return sqlitefile.Read(ctx, p.file, func(s *sqlitefile.Session) ([]int, error) {
		return verify(s, pool, claims, s.Fence().Holds(p.file.NowMS()))
	})
}

// List implements provider.Lister. It reads page by page, so that grants are
// not held up; records that change meanwhile may be of either state.
func (p *Provider) List(ctx context.Context, service string) ([]provider.Record, error) {
	terms := p.services.Of(service)
	var all []provider.Record
	for {
		page, err := sqlitefile.Read(ctx, p.file, func(s *sqlitefile.Session) ([]provider.Record, error) {
			return list(s, terms.Pool, all)
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
