package httplease_test

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/conn/httpconn"
	"github.com/kazahana/kazahana/internal/leaseserver"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/httplease"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func TestMain(m *testing.M) { await.Main(m) }

// front is a lease server in front of a provider, on a listener of its own.
type front struct {
	url    string
	server *leaseserver.Server
	inner  provider.Provider
	stop   context.CancelFunc
	done   chan error
}

// options of a server that limits nothing which a test does not mean to.
func options(p provider.Provider, services provider.Services) leaseserver.Options {
	return leaseserver.Options{
		Provider: p, Services: services, Version: "test",
		ProviderTimeout: await.Patience, MaxInFlight: 1000, RateBurst: 1,
		Metrics: metrics.NewLeaseServer(metrics.Build{}), Log: zap.NewNop(),
	}
}

func serve(o leaseserver.Options) (*front, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return serveOn(l, o), nil
}

func serveOn(l net.Listener, o leaseserver.Options) *front {
	ctx, stop := context.WithCancel(context.Background())
	f := &front{url: "http://" + l.Addr().String(), server: leaseserver.New(o), inner: o.Provider, stop: stop, done: make(chan error, 1)}
	go func() {
		f.done <- f.server.Serve(ctx, l, leaseserver.Listening{MaxConnections: 1000, DrainTimeout: await.Patience})
	}()
	return f
}

// close stops the server, then its provider.
func (f *front) close() error {
	f.stop()
	if err := <-f.done; err != nil && err != http.ErrServerClosed {
		return err
	}
	return f.inner.Close()
}

// client is the http provider with the server that only it uses.
type client struct {
	*httplease.Provider
	front *front
	once  atomic.Bool
}

// Close closes both once; what comes later sees a closed provider.
func (c *client) Close() error {
	err := c.Provider.Close()
	if c.once.CompareAndSwap(false, true) {
		if closeErr := c.front.close(); err == nil {
			err = closeErr
		}
	}
	return err
}

// open puts a server in front of the provider, and a client in front of that.
func open(p provider.Provider, services provider.Services, nowMS func() int64) (provider.Provider, error) {
	o := options(p, services)
	o.NowMS = nowMS
	f, err := serve(o)
	if err != nil {
		return nil, err
	}
	cfg, err := httpconn.ParseURL(f.url)
	if err != nil {
		return nil, err
	}
	h, err := httplease.New(cfg)
	if err != nil {
		return nil, err
	}
	return &client{Provider: h, front: f}, nil
}

// Several servers in front of one memory store.
func TestConformance(t *testing.T) {
	ring.All(t)
	providertest.Run(t, func(*testing.T) providertest.Store { // seeds 000-3.1-1 and 000-11.1-1
		var clock atomic.Int64
		store := memory.New(clock.Load)
		return providertest.Store{
			Open: func(services provider.Services) (provider.Provider, error) {
				p, err := providertest.OverMemory(store, services)
				if err != nil {
					return nil, err
				}
				return open(p, services, clock.Load)
			},
			SetClock: clock.Store,
			Checks:   25,
		}
	})
}

// A server on a Unix socket serves the same, and is named in errors by its path.
func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l s.sock")
	l, err := net.Listen("unix", path)
	must.Succeed(t, err)
	p, err := providertest.OverMemory(memory.New(nil), provider.Services{Default: provider.DefaultTerms()})
	must.Succeed(t, err)
	f := serveOn(l, options(p, provider.Services{Default: provider.DefaultTerms()}))
	cfg, err := httpconn.ParseURL("http+unix:" + strings.ReplaceAll(path, " ", "%20"))
	must.Succeed(t, err)
	h, err := httplease.New(cfg)
	must.Succeed(t, err)
	defer h.Close()
	leases, err := h.Acquire(t.Context(), provider.AcquireRequest{})
	must.Succeed(t, err)
	if lost, err := provider.Verify(t.Context(), h, "", leases); err != nil || len(lost) != 0 {
		t.Errorf("lost %v: %v", lost, err)
	}
	if found, err := h.Locate(t.Context(), "", leases[0].Slot().Start, leases[0].Created); err != nil || len(found) != 1 {
		t.Errorf("located %v (%v)", found, err)
	}
	must.Succeed(t, f.close())
	if _, err := h.Acquire(t.Context(), provider.AcquireRequest{}); err == nil || !strings.Contains(err.Error(), "http+unix:"+strings.ReplaceAll(path, " ", "%20")) {
		t.Errorf("the server is gone: %v", err)
	}
}
