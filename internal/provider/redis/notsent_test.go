package redis

import (
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

func TestReleaseOnABadNetwork(t *testing.T) {
	s := redistest.New(t)
	cfg := configOf(s, defaultServices())
	near := mustOpen(t, cfg)
	mustInit(t, near)
	proxy, err := providertest.NewProxy("unix", s.Sock)
	must.Succeed(t, err)
	t.Cleanup(proxy.Close)
	far := cfg
	far.Scheme, far.Addrs = "redis", []string{proxy.Addr()}
	providertest.RunRemote(t, providertest.Remote{
		Proxy: proxy, Near: near, Asks: true,
		Open: func() (provider.Provider, error) { return Open(testContext(t), far) },
		Sending: func(p provider.Provider, f func()) {
			p.(*Provider).at = func(step string) error {
				if step == stepReleasing {
					f()
				}
				return nil
			}
		},
		Mark: releaseScript.Hash(), PerRelease: 1,
	})
}
