package main

import (
	"context"
	"maps"
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

// --min and --max bound the machine IDs of every provider that takes a range, on the terms of the
// service.
func TestRunRange(t *testing.T) {
	low, high := int64(5), int64(9)
	slow := provider.DefaultTerms().WithBitSeq(10)
	slow.Pool = "batch"
	own := map[string]provider.Terms{"slow": slow}
	slow.IDs = provider.IDRange{Low: 5, End: 10}
	for url, change := range map[string]func(*provider.Terms){
		"memory:":                              func(*provider.Terms) {},
		"sqlite:/a b/l.db?term=1m":             func(t *provider.Terms) { t.Term, t.Quarantine = time.Minute, time.Minute },
		"redis://:a%2Fb@h/0?ids=0-9":           func(*provider.Terms) {},
		"redis+sentinel://a:1,b:2/m/0?pool=s0": func(t *provider.Terms) { t.Pool = "s0" },
		"etcd://a:1,b:2":                       func(*provider.Terms) {},
		"http://h?token_file=/t":               nil, // a lease server decides by itself
		"static:7":                             nil,
	} {
		want := maps.Clone(own)
		if change != nil {
			terms := provider.DefaultTerms()
			change(&terms)
			terms.IDs = provider.IDRange{Low: 5, End: 10}
			want["x"] = terms
		}
		// Seeds 001-3, 003-4.3-2 and 003-5-4.
		if got, err := withRange(url, own, "x", &low, &high); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v (%v), want %v", url, got, err, want)
		}
		if change != nil {
			if got, err := withRange(url, own, "slow", &low, &high); err != nil || got["slow"] != slow {
				t.Errorf("%s: %v (%v), want %v", url, got, err, slow)
			}
		}
		if got, err := withRange(url, own, "x", nil, nil); err != nil || !maps.Equal(got, own) {
			t.Errorf("%s: %v (%v) without bounds", url, got, err)
		}
	}
	if own["slow"].IDs != (provider.IDRange{}) {
		t.Error("the terms of the configuration were changed")
	}
	if got, err := withRange("etcd://a:1,b:2?ids=8-20", nil, "x", &low, &high); err == nil || !strings.Contains(err.Error(), "8-20") {
		t.Errorf("%v, %v", got, err)
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
