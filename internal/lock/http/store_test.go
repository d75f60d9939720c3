package http_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/leaseserver"
	"github.com/kazahana/kazahana/internal/lock"
	lockhttp "github.com/kazahana/kazahana/internal/lock/http"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
	recorddb "github.com/kazahana/kazahana/internal/record/sqlite"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/kazahana/kazahana/internal/testkit/sqlitetest"
)

func TestMain(m *testing.M) { await.Main(m) }

// patience is how long anything may take on a busy machine.
const patience = 45 * time.Second

// tokens are a credential of each tenant that the tests name.
const tokens = `
- {token: token-of-default-hosts, owner: hosts, scopes: [locks]}
- {token: token-of-another-host, owner: other, scopes: [locks]}
- {token: token-of-acme-hosts, tenant: acme, owner: hosts, scopes: [locks]}
- {token: token-of-placing-hosts, owner: hosts, scopes: [locks, placements]}
`

var tokenOf = map[string]string{"default": "token-of-default-hosts", "acme": "token-of-acme-hosts"}

// wall is a clock for waiting.
type wall struct{ began time.Time }

func (w wall) Elapsed() time.Duration { return time.Since(w.began) }

// front is a lease server on an SQLite file.
type front struct {
	server *httptest.Server
	end    func() error // of the file's use
	host   *lock.Host
}

func serve(path string) (*front, error) {
	file, end, err := sqlitetest.Open(path, sqlitefile.Options{})
	if err != nil {
		return nil, err
	}
	terms := provider.Services{Default: provider.DefaultTerms()}
	known, err := leaseserver.ParseTokens([]byte(tokens))
	p, err2 := providertest.OverMemory(memory.New(nil), terms)
	if err := errors.Join(err, err2); err != nil {
		return nil, errors.Join(err, end())
	}
	store := lock.OnRecords(recorddb.New(file, record.Area{}))
	host := lock.NewHost(store, wall{time.Now()}, patience)
	server := leaseserver.New(leaseserver.Options{
		Provider: p, Services: terms, Version: "test", Tokens: func() *leaseserver.Tokens { return known },
		Locks:           &leaseserver.Locks{Store: store, Host: host},
		ProviderTimeout: patience, MaxInFlight: 1000, RateBurst: 1,
		Metrics: metrics.NewLeaseServer(metrics.Build{}), Log: zap.NewNop(),
	})
	return &front{httptest.NewServer(server), end, host}, nil
}

func (f *front) close() error {
	f.server.Close()
	return errors.Join(f.host.Close(context.Background()), f.end())
}

// connect returns a client of the servers with the token.
func connect(dir, urls, token string) (*httpconn.Client, error) {
	path := filepath.Join(dir, token)
	if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
		return nil, err
	}
	cfg, err := httpconn.ParseURL(urls + "?token_file=" + path)
	if err != nil {
		return nil, err
	}
	return httpconn.New(cfg)
}

// tenants is a store for each tenant, and closes everything with it.
type tenants struct {
	lock.Store // of the tenant default, and of names that are none
	acme       lock.Store
	closers    []func() error
}

func (s *tenants) of(tenant string) lock.Store {
	if tenant == "acme" {
		return s.acme
	}
	return s.Store
}

func (s *tenants) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	return s.of(r.Tenant).Do(ctx, r)
}

func (s *tenants) Get(ctx context.Context, tenant, key string) (lock.Lease, error) {
	return s.of(tenant).Get(ctx, tenant, key)
}

func (s *tenants) List(ctx context.Context, tenant, after string, limit int) ([]lock.Lease, error) {
	return s.of(tenant).List(ctx, tenant, after, limit)
}

func (s *tenants) Close() error {
	var errs []error
	for _, c := range s.closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// Each client has a server of its own, in front of one file.
func TestConformance(t *testing.T) {
	ring.All(t)
	locktest.Run(t, func(t *testing.T) locktest.Backend {
		dir := ring.Dir(t)
		return locktest.Backend{
			Open: func() (lock.Store, error) {
				f, err := serve(filepath.Join(dir, sqlitefile.StoreName))
				if err != nil {
					return nil, err
				}
				out := &tenants{}
				stores := map[string]lock.Store{}
				for tenant, token := range tokenOf {
					c, err := connect(dir, f.server.URL, token)
					if err != nil {
						return nil, errors.Join(err, f.close())
					}
					stores[tenant] = lockhttp.New(c)
					out.closers = append(out.closers, c.Close)
				}
				out.Store, out.acme = stores["default"], stores["acme"]
				out.closers = append(out.closers, f.close)
				return out, nil
			},
			Restart: func() error { return nil }, // every Open starts a server on the file
		}
	})
}
