package redis_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/testkit/proxytest"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// deciding is records that show their changes before they are sent.
type deciding struct {
	record.Store
	decided func([]record.Write)
}

func (d deciding) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	return d.Store.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		writes, err := rule(v)
		if err == nil {
			d.decided(writes)
		}
		return writes, err
	})
}

func TestReleaseOnABadNetwork(t *testing.T) {
	s := redistest.New(t)
	near := options{Config: s.Config(), services: provider.Services{Default: provider.DefaultTerms()}}
	p := &leasing{T: t, options: near}
	p.provider = p.open(near)
	p.init()
	p.acquire(p.provider)
	proxy := proxytest.New(t, "unix", s.Sock)
	var sending atomic.Pointer[func()]
	far := near
	far.Scheme, far.Addrs = "redis", []string{proxy.Addr()}
	far.around = func(s record.Store) record.Store {
		return deciding{s, func(writes []record.Write) {
			if f := sending.Load(); f != nil && len(writes) == 1 && writes[0].Frees {
				(*f)()
			}
		}}
	}
	// The script has the stamp of the area's record, and a byte that says that it frees.
	state := s.Do(t, "GET", near.Prefix+"@leases")
	providertest.RunRemote(t, providertest.Remote{
		Proxy: proxy, Near: p.provider,
		Open:    func() (provider.Provider, error) { return openLeases(far) },
		Sending: func(_ provider.Provider, f func()) { sending.Store(&f) },
		Mark:    state[:8] + "\x02",
	})
	if now := s.Do(t, "GET", near.Prefix+"@leases"); !strings.HasPrefix(now, state[:8]) {
		t.Error("the area's record has changed: the test does not show what it should")
	}
}
