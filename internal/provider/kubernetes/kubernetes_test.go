package kubernetes

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/kubetest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestMain(m *testing.M) { await.Main(m) }

// rig is the small server with a clock that can be set.
type rig struct {
	*kubetest.Server
	t      *testing.T
	clock  atomic.Int64
	offset atomic.Int64 // of a host's clock, ahead of the server's
	config string       // a kubeconfig
}

const testTime = 1_776_643_200_123 // in April 2026

func newRig(t *testing.T) *rig {
	r := &rig{t: t}
	r.clock.Store(testTime)
	r.Server = kubetest.NewServer(t, r.clock.Load)
	r.Allow("daemon", kubetest.Verbs(t)...)
	r.config = r.Kubeconfig(t, "daemon")
	return r
}

func (r *rig) cfg(services provider.Services) Config {
	return Config{
		Config:   kubeconn.Config{Kubeconfig: r.config, NowMS: func() int64 { return r.clock.Load() + r.offset.Load() }},
		Services: services,
	}
}

// open opens a provider on the terms.
func (r *rig) open(terms provider.Terms) *Provider {
	r.t.Helper()
	p, err := Open(r.cfg(provider.Services{Default: terms}))
	must.Succeed(r.t, err)
	r.t.Cleanup(func() { p.Close() })
	return p
}

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(context.Background(), await.Patience)
	t.Cleanup(cancel)
	return c
}

func TestConformance(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providertest.Store {
		r := newRig(t)
		return providertest.Store{
			Open:     func(services provider.Services) (provider.Provider, error) { return opened(r.cfg(services)) },
			SetClock: r.clock.Store,
			Checks:   10, OneLayout: true,
		}
	})
}

// opened returns no nil pointer in an interface.
func opened(cfg Config) (provider.Provider, error) {
	p, err := Open(cfg)
	if err != nil {
		return nil, err
	}
	return p, nil
}
