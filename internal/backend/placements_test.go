package backend

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/leaseserver"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/operator/metrics"
	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

var lobby = placement.Key{Kind: "room", Identity: "lobby"}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// places has the activation records work.
func places(t *testing.T, s *Store) {
	t.Helper()
	ctx := within(t)
	first := placement.Record{Owner: placement.Member{Authority: "a:1", Token: 1}, PID: "p", Version: 1, Token: 4, Snapshot: []byte("snap")}
	must.Succeed(t, s.Placements.Store(ctx, "default", lobby, first))
	if r, err := s.Placements.Load(ctx, "default", lobby); err != nil || r.Owner != first.Owner || r.PID != "p" || string(r.Snapshot) != "snap" {
		t.Errorf("stored is %+v, %v", r, err)
	}
	if r, err := s.Placements.Load(ctx, "acme", lobby); err != nil || s.URL[:4] != "http" && r.Version != 0 { // there the credential names the owner
		t.Errorf("another tenant has %+v, %v", r, err)
	}
	other := first
	other.Owner.Authority = "b:1"
	if err := s.Placements.Store(ctx, "default", lobby, other); !errors.Is(err, placement.ErrStale) {
		t.Errorf("another owner of the version: %v", err)
	}
	if err := s.Placements.Remove(ctx, "default", lobby, first, true); err != nil {
		t.Error(err)
	}
	if r, err := s.Placements.Load(ctx, "default", lobby); err != nil || r.Owner.Authority != "" || r.Version != 1 || string(r.Snapshot) != "snap" {
		t.Errorf("removed is %+v, %v", r, err)
	}
	if _, err := s.Placements.Load(ctx, "default", placement.Key{}); !errors.Is(err, placement.ErrInvalid) {
		t.Errorf("an empty key: %v", err)
	}
	for _, err := range []error{
		s.Placements.Store(ctx, "default", lobby, placement.Record{}), s.Placements.Remove(ctx, "default", lobby, placement.Record{}, false),
		s.Placements.Store(ctx, "default", placement.Key{}, first), s.Placements.Remove(ctx, "default", placement.Key{}, first, false),
	} {
		if !errors.Is(err, placement.ErrInvalid) {
			t.Errorf("an empty record or key: %v", err)
		}
	}
}

// leaseServer is the URL of one in front of a store of its own.
func leaseServer(t *testing.T) string {
	s, err := OpenStore("memory:", StoreOptions{})
	must.Succeed(t, err)
	terms := provider.Services{Default: provider.DefaultTerms()}
	p, err := providertest.OverMemory(memory.New(nil), terms)
	must.Succeed(t, err)
	host := lock.NewHost(s.Locks, elapsed{time.Now()}, time.Minute)
	server := httptest.NewServer(leaseserver.New(leaseserver.Options{
		Provider: p, Services: terms, Version: "test", ProviderTimeout: time.Minute, MaxInFlight: 100, RateBurst: 1,
		Locks: &leaseserver.Locks{Store: s.Locks, Host: host}, Sequences: &leaseserver.Sequences{Store: s.Sequences},
		Placements: &leaseserver.Placements{Records: s.Placements},
		Metrics:    metrics.NewLeaseServer(metrics.Build{}), Log: zap.NewNop(),
	}))
	t.Cleanup(func() {
		server.Close()
		if err := errors.Join(host.Close(context.Background()), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return server.URL
}

type elapsed struct{ began time.Time }

func (e elapsed) Elapsed() time.Duration { return time.Since(e.began) }
