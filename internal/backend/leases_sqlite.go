package backend

import (
	"context"
	"errors"
	"io"
	"net/url"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/lazy"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	recorddb "github.com/kazahana/kazahana/internal/record/sqlite"
)

// leaseFile describes a file of leases, which many processes of a host may use at once.
var leaseFile = sqlitefile.Kind{
	Name: "lease database", Area: "leases", ApplicationID: 0x6b7a686e, // "kzhn"
	Version: 2,
	Older: "a kazahanad from before leases were kept as records wrote it. End every process that uses it, wait until all leases " +
		"granted from it have ended (20 minutes after the last grant or renewal, unless term= or quarantine= is set), and move it away: a new file is made",
	Schema:  recorddb.Tables,
	Moved:   "put it back, or restart once the leases granted from it have ended",
	Damaged: "restore it, without a -journal or -wal file beside it, or move it away once every lease granted from it has ended",
}

// LeaseFile says which SQLite file to use, and what to grant from it. Its scope is the host: two
// hosts with a file each grant the same machine IDs.
type LeaseFile struct {
	Path     string // absolute
	Services provider.Services
	NowMS    func() int64 // the provider's clock in Unix ms; nil means the wall clock
	LiveDir  string       // where the file's watermark is; see package sqlitefile
	// Random is a number from 0 to n-1, by which machine IDs are chosen; nil: by chance.
	Random func(n int64) int64
	// At is called at each step of a write, as in sqlitefile.Options. Only tests set it.
	At func(step string) error
}

// ParseLeaseFile reads sqlite:PATH. It does not touch the file.
func ParseLeaseFile(u *url.URL, opts ProviderOptions) (LeaseFile, error) {
	params, err := connurl.ParseQuery(u.RawQuery, provider.TermsParams())
	if err != nil {
		return LeaseFile{}, err
	}
	services, err := opts.servicesOf(params)
	if err != nil {
		return LeaseFile{}, err
	}
	path, err := sqlitefile.PathOf(u, "/var/lib/kazahana/leases.db")
	return LeaseFile{Path: path, Services: services, NowMS: opts.NowMS, LiveDir: opts.LiveDir}, err
}

// open opens the file, and creates it with its directory where it does not exist. It waits for
// other processes that hold the file's lock until ctx ends.
func (c LeaseFile) open(ctx context.Context) (*opened, error) {
	area := pool.AreaOf(c.Services)
	file, err := sqlitefile.Open(ctx, c.Path, &leaseFile, sqlitefile.Options{
		NowMS: c.NowMS, LiveDir: c.LiveDir, TermMS: area.MaxGrantMS, At: c.At,
	})
	if err != nil {
		return nil, err
	}
	return &opened{Store: recorddb.New(file, area), closers: []io.Closer{file}, backup: file.Backup}, nil
}

// pool is the pool in the file.
func (c LeaseFile) pool() pool.Config {
	return pool.Config{
		Services: c.Services, Random: c.Random,
		Info: provider.Info{Name: "sqlite", URL: c.Services.Default.At(sqlitefile.URL(c.Path)), Scope: provider.ScopeHost},
	}
}

// OpenLeaseFile opens the file at once.
func OpenLeaseFile(ctx context.Context, cfg LeaseFile) (*Leases, error) {
	if err := cfg.Services.Validate(); err != nil {
		return nil, err
	}
	file, err := cfg.open(ctx)
	if err != nil {
		return nil, err
	}
	made := cfg.pool()
	return newLeases(made, lazy.Opened("provider "+made.Info.URL, file, (*opened).close))
}

// Check returns why a start would not grant leases from the file on the services' terms, and
// changes nothing.
func (c LeaseFile) Check(ctx context.Context) error {
	return sqlitefile.ReadOnly(ctx, c.Path, func(s *sqlitefile.Session) error {
		if err := leaseFile.Recognise(s); err != nil {
			return err
		}
		var found string
		if err := s.QueryRow("PRAGMA quick_check(1)", nil, &found); err != nil {
			return err
		}
		if found != "ok" {
			return errors.New(found)
		}
		for _, t := range c.Services.All() {
			head, err := recorddb.Value(s, pool.HeadKey(t.Pool))
			if err == nil {
				err = pool.Check(sqlitefile.URL(c.Path), head, t)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
