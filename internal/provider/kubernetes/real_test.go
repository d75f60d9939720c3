package kubernetes

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/conn/kubeconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/kubetest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// A real API server with RBAC, and tokens of service accounts that have the verbs of the
// shipped Role only.
func TestRealServer(t *testing.T) {
	ring.Deep(t)
	real := kubetest.StartReal(t)
	cfg := func(t *testing.T) Config {
		namespace, token := real.Tenant()
		return Config{Config: kubeconn.Config{Namespace: namespace, Kubeconfig: real.Kubeconfig(t, namespace, token)}}
	}
	t.Run("Conformance", func(t *testing.T) {
		providertest.Run(t, func(t *testing.T) providertest.Store {
			cfg := cfg(t)
			return providertest.Store{
				Open: func(services provider.Services) (provider.Provider, error) {
					cfg := cfg
					cfg.Services = services
					return opened(cfg)
				},
				Checks: 3, OneLayout: true,
			}
		})
	})
	t.Run("ColdStart", func(t *testing.T) { realColdStart(t, cfg(t)) })
}

// realColdStart: many hosts begin at the same moment in a pool that is new, and each gets a
// machine ID of its own, though the API server asks most of them to come back later. The log says how
// long that took: here the hosts share the processors and some connections, and elsewhere each has its
// own.
func realColdStart(t *testing.T, cfg Config) {
	const hosts = 4000
	cfg.Services.Default = provider.DefaultTerms()
	providers := make([]*Provider, hosts)
	for i := range providers {
		p, err := Open(cfg)
		must.Succeed(t, err)
		t.Cleanup(func() { p.Close() })
		providers[i] = p
	}
	ids := make([]int64, hosts)
	var failed atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for i, p := range providers {
		wg.Go(func() {
			req := provider.AcquireRequest{RequestID: provider.NewSecret(), Meta: map[string]string{"pod": fmt.Sprintf("orders-%d", i), "namespace": cfg.Namespace, "node": "node-7"}}
			for {
				got, err := p.Acquire(ctx(t), req)
				if err == nil {
					ids[i] = got[0].ID
					return
				}
				failed.Add(1)
				wait := 100 * time.Millisecond
				if busy, ok := errors.AsType[*provider.BusyError](err); ok { // as a daemon does
					wait = busy.Wait(wait, rand.Float64())
				}
				if time.Since(began) > 10*await.Patience { // the server asks for up to half a minute each time
					t.Errorf("host %d has no machine ID: %v", i, err)
					return
				}
				time.Sleep(wait)
			}
		})
	}
	wg.Wait()
	t.Logf("%d hosts have a machine ID after %v; %d attempts were refused", hosts, time.Since(began).Round(time.Millisecond), failed.Load())
	slices.Sort(ids)
	if n := len(slices.Compact(ids)); n != hosts {
		t.Errorf("%d hosts have %d machine IDs", hosts, n)
	}
	records, err := providers[0].List(ctx(t), "")
	if err != nil || len(records) != hosts {
		t.Errorf("%d records, %v", len(records), err)
	}
}
