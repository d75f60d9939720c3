package main

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/operator/config"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

// --min and --max bound every form of URL that can bound machine IDs.
// Seeds 001-3, 003-4.3-2 and 003-5-4.
func TestRunRange(t *testing.T) {
	low, high := int64(5), int64(9)
	for url, want := range map[string]string{
		"memory:":                              "memory:?ids=5-9",
		"sqlite:/a b/l.db?term=1m":             "sqlite:/a b/l.db?ids=5-9&term=1m",
		"redis://:a%2Fb@h/0?ids=0-9":           "redis://:a%2Fb@h/0?ids=5-9",
		"redis+sentinel://a:1,b:2/m/0?term=5s": "redis+sentinel://a:1,b:2/m/0?ids=5-9&term=5s",
		"etcd://a:1,b:2":                       "etcd://a:1,b:2?ids=5-9",
		"http://h?token_file=/t":               "http://h?token_file=/t", // a lease server decides by itself
		"static:7":                             "static:7",
	} {
		if got, err := withRange(url, &low, &high); err != nil || got != want {
			t.Errorf("%s became %s (%v), want %s", url, got, err, want)
		}
		if got, err := withRange(url, nil, nil); err != nil || got != url {
			t.Errorf("%s became %s (%v) without bounds", url, got, err)
		}
	}
	if got, err := withRange("etcd://a:1,b:2?ids=8-20", &low, &high); err == nil || !strings.Contains(err.Error(), "8-20") {
		t.Errorf("%s, %v", got, err)
	}
}

// signalled is a provider that a signal meets while it grants.
type signalled struct {
	*pool.Provider
	signals chan<- syscall.Signal
}

func (s signalled) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	s.signals <- syscall.SIGTERM
	for len(s.signals) > 0 {
		time.Sleep(time.Millisecond) // until it has been noticed
	}
	return s.Provider.Acquire(ctx, req)
}

// A machine ID that was granted at the moment of a signal is free again at once.
func TestRunHandsBackWhatNobodyWantsAnyMore(t *testing.T) {
	t.Parallel()
	p, err := providertest.OverMemory(memory.New(func() int64 { return time.Now().UnixMilli() }), provider.Services{Default: provider.DefaultTerms()})
	if err != nil {
		t.Fatal(err)
	}
	signals := make(chan syscall.Signal, 1)
	j := &job{
		runCmd: &runCmd{Quiet: true}, settings: &config.Serve{Leases: config.Leases{ProviderTimeout: await.Patience}}, provider: signalled{p, signals},
		system: &system{ctx: t.Context(), now: time.Now}, clock: clock.System{}, signals: signals,
	}
	if _, _, err := j.acquire(); err == nil || err.(exitStatus).code != 128+int(syscall.SIGTERM) {
		t.Errorf("the acquire ended with %v", err)
	}
	records, err := p.List(t.Context(), "")
	if err != nil || len(records) != 1 || !records[0].Released || records[0].End > records[0].Lease.Created+1 {
		t.Errorf("%+v (%v)", records, err)
	}
}
