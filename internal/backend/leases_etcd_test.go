package backend_test

import (
	"errors"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// etcdURL is the URL of an empty prefix.
func etcdURL(t *testing.T) string {
	cfg := etcdtest.Shared(t)
	return "etcd://" + cfg.Endpoints[0] + "?prefix=" + cfg.Prefix
}

func TestEtcdLeases(t *testing.T) {
	ctx, url := t.Context(), etcdURL(t)
	slow := provider.DefaultTerms().WithBitSeq(10)
	slow.Term, slow.Pool = 5*slow.Term, "batch"
	p, err := backend.OpenProvider(url+"&ids=3-9&pool=one", backend.ProviderOptions{Services: map[string]provider.Terms{"slow": slow}})
	must.Succeed(t, err)
	defer p.Close()
	must.Succeed(t, p.Ready(ctx))
	must.Succeed(t, backend.Opened(ctx, p))
	// Seed 003-5-2.
	if info := p.Info(); info.URL != url+"&pool=one&ids=3-9" || info.Scope != provider.ScopeShared || !info.Coordinated {
		t.Errorf("it is %+v", info)
	}
	for service, term := range map[string]int64{"": provider.DefaultTerms().Term.Milliseconds(), "slow": slow.Term.Milliseconds()} {
		got, err := p.Acquire(ctx, provider.AcquireRequest{Service: service})
		if err != nil || got[0].Expired-got[0].Created != term || (got[0].BitSeq == 10) != (service == "slow") {
			t.Errorf("%q: %v, %v", service, got, err)
		}
	}
	other, err := backend.OpenProvider(url+"&pool=one&epoch=1", backend.ProviderOptions{})
	must.Succeed(t, err)
	defer other.Close()
	if err := other.Ready(ctx); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("with another epoch: %v", err)
	}
}

// The keys of earlier versions are refused by name, in the pools that are used.
func TestOldEtcdLeases(t *testing.T) {
	cfg := etcdtest.Shared(t)
	cl, err := etcdtest.NewClient(clientv3.Config{Endpoints: cfg.Endpoints})
	must.Succeed(t, err)
	defer cl.Close()
	_, err = cl.Put(t.Context(), cfg.Prefix+"default/pool", `{"epoch_ms":1767225600000,"bit_ts":41}`)
	must.Succeed(t, err)
	for more, old := range map[string]bool{"": true, "&pool=new": false} {
		p, err := backend.OpenProvider("etcd://"+cfg.Endpoints[0]+"?prefix="+cfg.Prefix+more, backend.ProviderOptions{})
		must.Succeed(t, err)
		_, err = p.Acquire(t.Context(), provider.AcquireRequest{})
		if (err != nil) != old || old && !strings.Contains(err.Error(), cfg.Prefix+"default/") {
			t.Errorf("%q: %v", more, err)
		}
		must.Succeed(t, p.Close())
	}
}
