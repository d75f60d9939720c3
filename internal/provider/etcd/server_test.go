package etcd

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

type member = etcdtest.Member

func TestMain(m *testing.M) { os.Exit(etcdtest.Run(m)) }

// config is on a new, empty prefix of the shared server.
func config(t testing.TB, services provider.Services, nowMS func() int64) Config {
	t.Helper()
	return Config{Config: etcdtest.Shared(t), Services: services, NowMS: nowMS}
}

// configOf is for a cluster of a test's own.
func configOf(members ...*member) Config {
	cfg := Config{Config: etcdconn.Config{Prefix: etcdconn.DefaultPrefix}, Services: defaultServices()}
	for _, m := range members {
		cfg.Endpoints = append(cfg.Endpoints, m.Client)
	}
	return cfg
}

func mustOpen(t testing.TB, cfg Config) *Provider {
	t.Helper()
	p, err := Open(cfg)
	must.Succeed(t, err)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

// testContext is for what works, however busy the machine is.
func testContext(t testing.TB) context.Context { return within(t, await.Patience) }

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func defaultServices() provider.Services {
	return provider.Services{Default: provider.DefaultTerms()}
}
