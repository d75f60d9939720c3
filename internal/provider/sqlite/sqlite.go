package sqlite

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// Config says which file to use and what to grant from it.
type Config struct {
	Path     string // absolute
	Services provider.Services
	NowMS    func() int64 // the provider's clock in Unix ms; nil means the wall clock
}

// Provider grants leases from one SQLite file.
type Provider struct {
	path     string
	services provider.Services
	nowMS    func() int64

	// Owned by the worker goroutine from Open on.
	session *session
	files   watch
	joined  map[string]bool // pools that have counted this client
	// at is called at the named steps of a write. Only tests set it: there a
	// process ends itself, or an operation fails.
	at func(step string) error

	tasks     chan func() // one at a time, in order of arrival
	writes    chan *job   // operations that may share a commit
	closeOnce sync.Once
	closing   chan struct{} // closed by Close
	stopped   chan struct{} // closed when the worker has ended
	closeErr  error         // what closing the file said; read after stopped
}

var (
	_ provider.Provider = (*Provider)(nil)
	_ provider.Verifier = (*Provider)(nil)
	_ provider.Lister   = (*Provider)(nil)
	_ provider.Extender = (*Provider)(nil)
	_ provider.Locator  = (*Provider)(nil)
	_ provider.Counter  = (*Provider)(nil)
)

// Params returns the parameters that a sqlite: URL takes.
func Params() []string { return provider.TermsParams() }

// ParseURL reads sqlite:PATH. The URL's parameters set the terms of services
// that named does not have. It does not touch the file.
func ParseURL(u *url.URL, named map[string]provider.Terms, nowMS func() int64) (Config, error) {
	q, err := provider.ParseQuery(u.RawQuery, Params())
	if err != nil {
		return Config{}, err
	}
	terms, err := provider.ParseTerms(q)
	if err != nil {
		return Config{}, err
	}
	path, err := pathOf(u)
	if err != nil {
		return Config{}, err
	}
	cfg := Config{Path: path, Services: provider.Services{Default: terms, Named: named}, NowMS: nowMS}
	return cfg, cfg.Services.Validate()
}

// pathOf is the file that the URL names. A relative path would name another
// file, and so grant the same machine IDs twice, as soon as a daemon is started
// from another directory.
func pathOf(u *url.URL) (string, error) {
	path := u.Path
	if u.Host != "" || u.Opaque != "" {
		relative, err := url.PathUnescape(u.Opaque)
		if err != nil {
			return "", fmt.Errorf("sqlite:%s: the path has a '%%' that is not followed by two hex digits", u.Opaque)
		}
		relative = filepath.Join(u.Host, u.Path, relative)
		absolute, err := filepath.Abs(relative)
		if err != nil {
			absolute = "/" + relative
		}
		return "", fmt.Errorf("sqlite:%s is a relative path, which means another file in another working directory; write sqlite:%s",
			relative, absolute)
	}
	if path == "" || path == "/" {
		return "", errors.New("sqlite: needs the path of a file, for example sqlite:/var/lib/kazahana/leases.db")
	}
	return filepath.Clean(path), nil
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
	if !filepath.IsAbs(cfg.Path) {
		return nil, fmt.Errorf("sqlite:%s: the path must be absolute", cfg.Path)
	}
	p := &Provider{
		path: cfg.Path, services: cfg.Services, nowMS: cfg.NowMS,
		at:     func(string) error { return nil },
		joined: map[string]bool{},
		tasks:  make(chan func()), writes: make(chan *job), closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	if p.nowMS == nil {
		p.nowMS = func() int64 { return time.Now().UnixMilli() }
	}
	if err := p.open(ctx); err != nil {
		return nil, explain(p.path, err)
	}
	go p.work()
	return p, nil
}

func (p *Provider) open(ctx context.Context) error {
	if err := prepareFile(ctx, p.path); err != nil {
		return err
	}
	before, err := os.Stat(p.path)
	if err != nil {
		return err
	}
	resolved, err := filepath.EvalSymlinks(p.path)
	if err != nil {
		return err
	}
	if p.session, err = connect(ctx, resolved); err != nil {
		return err
	}
	if err := p.check(ctx, before, resolved); err != nil {
		return errors.Join(err, p.session.close())
	}
	return nil
}

// check makes sure that the connection can be granted from.
func (p *Provider) check(ctx context.Context, before os.FileInfo, resolved string) error {
	s := p.session
	for _, pragma := range []string{"PRAGMA synchronous=FULL", "PRAGMA journal_size_limit=4194304", "PRAGMA trusted_schema=OFF"} {
		if err := retryBusy(ctx, nil, func() error { return s.execOnce(pragma) }); err != nil {
			return err
		}
	}
	if err := retryBusy(ctx, nil, func() error { return checkSchema(s) }); err != nil {
		return err
	}
	var err error
	if p.files, err = watchFiles(p.path, resolved); err != nil {
		return err
	}
	if !os.SameFile(before, p.files.files[0]) {
		return ErrMoved
	}
	return retryBusy(ctx, nil, p.checkTimelines)
}

// checkTimelines compares the services' terms with the pools of the file.
func (p *Provider) checkTimelines() error {
	all := []provider.Terms{p.services.Default}
	for _, t := range p.services.Named {
		all = append(all, t)
	}
	for _, t := range all {
		if _, err := findPool(p.session, t.Pool, &t.Timeline); err != nil && !errors.Is(err, errNoPool) {
			return err
		}
	}
	return nil
}

// Info describes the provider that Open opens.
func (c Config) Info() provider.Info {
	url := "sqlite:" + c.Path
	if ids := c.Services.Default.IDs; !ids.IsAll() {
		url += "?ids=" + ids.String()
	}
	return provider.Info{Name: "sqlite", URL: url, Scope: provider.ScopeHost, Coordinated: true}
}

// Info implements provider.Provider.
func (p *Provider) Info() provider.Info {
	return Config{Path: p.path, Services: p.services}.Info()
}

// Close implements provider.Provider. It waits for the operation under way.
func (p *Provider) Close() error {
	p.closeOnce.Do(func() { close(p.closing) })
	<-p.stopped
	return p.closeErr
}

// Acquire implements provider.Provider.
func (p *Provider) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	terms := p.services.Of(req.Service)
	var leases []lease.Lease
	err := p.submitWrite(ctx, func(t *transaction) (err error) {
		leases, err = t.acquire(terms, req)
		return t.countAcquire(terms.Pool, !p.joined[terms.Pool], err)
	}, func() { p.joined[terms.Pool] = true })
	if err != nil {
		return nil, err
	}
	return leases, nil
}

// Release implements provider.Provider.
func (p *Provider) Release(ctx context.Context, req provider.ReleaseRequest) error {
	pool := p.services.Of(req.Service).Pool
	return p.submitWrite(ctx, func(t *transaction) error { return t.release(pool, req) }, nil)
}

// Verify implements provider.Verifier.
func (p *Provider) Verify(ctx context.Context, service string, leases []lease.Lease) ([]lease.Lease, error) {
	pool := p.services.Of(service).Pool
	return submit(ctx, p, func() (lost []lease.Lease, err error) {
		err = p.read(ctx, func(s *session) error {
			lost, err = verify(s, pool, leases)
			return err
		})
		return lost, err
	})
}

// List implements provider.Lister. It reads page by page, so that grants are
// not held up; records that change meanwhile may be of either state.
func (p *Provider) List(ctx context.Context, service string) ([]provider.Record, error) {
	terms := p.services.Of(service)
	var all []provider.Record
	for {
		page, err := submit(ctx, p, func() (page []provider.Record, err error) {
			err = p.read(ctx, func(s *session) error {
				page, err = list(s, terms.Pool, all)
				return err
			})
			return page, err
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
