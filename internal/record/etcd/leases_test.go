package etcd_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record/etcd"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

type member = etcdtest.Member

// leases is a pool in etcd, with its parts.
type leases struct {
	*pool.Provider
	conn *etcdconn.Client
}

// options are what most tests leave as they are.
type options struct {
	services provider.Services // the zero value: the default terms
	nowMS    func() int64
	random   func(n int64) int64
}

func open(cfg etcdconn.Config, o options) (*leases, error) {
	if o.services.Default == (provider.Terms{}) {
		o.services.Default = provider.DefaultTerms()
	}
	if o.nowMS == nil {
		o.nowMS = func() int64 { return time.Now().UnixMilli() }
	}
	conn, err := etcdconn.Open(cfg)
	if err != nil {
		return nil, err
	}
	records := etcd.New(conn, pool.AreaOf(o.services), o.nowMS)
	p, err := pool.New(pool.Config{
		Records: records, Services: o.services, Random: o.random,
		Info:  provider.Info{Name: "etcd", URL: cfg.Place(), Scope: provider.ScopeShared},
		Close: func() error { return errors.Join(records.Close(), conn.Close()) },
	})
	return &leases{p, conn}, err
}

func mustOpen(t testing.TB, cfg etcdconn.Config, o options) *leases {
	t.Helper()
	p, err := open(cfg, o)
	must.Succeed(t, err)
	t.Cleanup(func() { must.Succeed(t, p.Close()) })
	return p
}

// configOf is for a cluster of a test's own.
func configOf(members ...*member) etcdconn.Config {
	cfg := etcdconn.Config{Prefix: etcdconn.DefaultPrefix}
	for _, m := range members {
		cfg.Endpoints = append(cfg.Endpoints, m.Client)
	}
	return cfg
}

// testContext is for what works, however busy the machine is.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	t.Cleanup(cancel)
	return ctx
}

// factory makes pools with prefixes of their own.
func factory(t *testing.T) providertest.Store {
	var clock atomic.Int64
	cfg := etcdtest.Shared(t)
	raw, err := etcdconn.Open(cfg)
	must.Succeed(t, err)
	return providertest.Store{
		Open: func(services provider.Services) (provider.Provider, error) {
			// A failed history is played again.
			return open(cfg, options{services: services, nowMS: clock.Load, random: func(int64) int64 { return 0 }})
		},
		SetClock: func(unixMS int64) {
			if unixMS-clock.Swap(unixMS) > time.Minute.Milliseconds() { // what etcd measures is over, too
				_, err := raw.KV.Delete(testContext(t), cfg.Prefix+"@leases/fence/runs")
				must.Succeed(t, err)
			}
		},
		Checks: 10, Close: func() { raw.Close() },
	}
}

func TestLeasesConform(t *testing.T) {
	providertest.Run(t, factory) // seeds 003-2-2, 003-4.4-1 and 003-4.4-2
}
