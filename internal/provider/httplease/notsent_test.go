package httplease_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/proxytest"
)

// behindProxy is a server, its provider, and a proxy in front of it.
func behindProxy(t *testing.T) (near provider.Provider, proxy *proxytest.Proxy, direct string) {
	t.Helper()
	services := provider.Services{Default: provider.DefaultTerms()}
	near, err := providertest.OverMemory(memory.New(nil), services)
	must.Succeed(t, err)
	f, err := serve(options(near, services))
	must.Succeed(t, err)
	t.Cleanup(func() { must.Succeed(t, f.close()) })
	return near, proxytest.New(t, "tcp", strings.TrimPrefix(f.url, "http://")), f.url
}

func TestReleaseOnABadNetwork(t *testing.T) {
	near, proxy, _ := behindProxy(t)
	providertest.RunRemote(t, providertest.Remote{
		Proxy: proxy, Near: near,
		Open: func() (provider.Provider, error) { return mustOpen(t, "http://"+proxy.Addr()), nil },
		Mark: "DELETE /lease/",
	})
}

func releaseOf(l lease.Lease) provider.ReleaseRequest {
	return providertest.SignedRelease(l, time.Now().UnixMilli())
}

// A release goes to the next server only where the one before got no byte of it.
func TestReleaseAndSeveralServers(t *testing.T) {
	for name, test := range map[string]struct {
		fault func(*proxytest.Proxy)
		sent  bool
		limit time.Duration
	}{
		"down":      {(*proxytest.Proxy).Down, false, await.Patience},
		"cuts":      {func(p *proxytest.Proxy) { p.CutAt("DELETE") }, true, await.Patience},
		"no answer": {(*proxytest.Proxy).Mute, true, 10 * time.Second}, // half of it for the first server
	} {
		t.Run(name, func(t *testing.T) {
			near, proxy, direct := behindProxy(t)
			p := mustOpen(t, "http://"+proxy.Addr()+","+direct)
			leases, err := near.Acquire(t.Context(), provider.AcquireRequest{})
			must.Succeed(t, err)
			test.fault(proxy)
			err = p.Release(within(t, test.limit), releaseOf(leases[0]))
			switch {
			case !test.sent && err != nil:
				t.Errorf("the first server got nothing, and the second was not asked: %v", err)
			case test.sent && (err == nil || errors.Is(err, provider.ErrNotSent) || proxy.Count("DELETE") != 1):
				t.Errorf("the error is %v, and %d releases came to the first server", err, proxy.Count("DELETE"))
			}
			if test.sent {
				if lost, err := provider.Verify(t.Context(), near, "", leases); err != nil || len(lost) > 0 {
					t.Errorf("the second server released it: %v, %v", lost, err)
				}
			}
		})
	}
}

// No byte of a request is sent to a server with an unknown certificate, or that takes no part in
// the handshake.
func TestHandshakeSendsNothing(t *testing.T) {
	near, proxy, _ := behindProxy(t)
	leases, err := near.Acquire(t.Context(), provider.AcquireRequest{})
	must.Succeed(t, err)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, in the kernel
	must.Succeed(t, err)
	defer silent.Close()
	for name, url := range map[string]string{
		"no TLS there": "https://" + proxy.Addr(), "silent": "https://" + silent.Addr().String(),
		"no such host": "http://host.invalid:1",
	} {
		if err := mustOpen(t, url).Release(within(t, time.Second), releaseOf(leases[0])); !errors.Is(err, provider.ErrNotSent) {
			t.Errorf("%s: the error is %v, want ErrNotSent", name, err)
		}
	}
}
