package etcd

import (
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func TestReleaseOnABadNetwork(t *testing.T) {
	cfg := config(t, defaultServices(), nil)
	near := mustOpen(t, cfg)
	proxy, err := providertest.NewProxy("tcp", etcdtest.SharedMember().Client)
	must.Succeed(t, err)
	t.Cleanup(proxy.Close)
	far := cfg
	far.Endpoints = []string{proxy.Addr()}
	providertest.RunRemote(t, providertest.Remote{
		Proxy: proxy, Near: near, Asks: true,
		Open: func() (provider.Provider, error) { return Open(far) },
		Sending: func(p provider.Provider, f func()) {
			p.(*Provider).at = func(step string) error {
				if step == stepReleasing {
					f()
				}
				return nil
			}
		},
		Mark: `"released":true`, PerRelease: 2, // the record and the history
	})
}
