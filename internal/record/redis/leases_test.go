package redis_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/kazahana/kazahana/internal/conn/redisconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/redis"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// options are of leases in a test.
type options struct {
	redisconn.Config
	services provider.Services
	// around is put around the records; nil: nothing.
	around func(record.Store) record.Store
	random func(n int64) int64
}

// openLeases opens a provider as the product does.
func openLeases(o options) (*pool.Provider, error) {
	client, err := redisconn.Open(o.Config)
	if err != nil {
		return nil, err
	}
	store := redis.New(client, pool.AreaOf(o.services))
	end := func() error { return errors.Join(store.Close(), client.Close()) }
	if err := store.Check(context.Background()); err != nil {
		return nil, errors.Join(err, end())
	}
	var records record.Store = store
	if o.around != nil {
		records = o.around(store)
	}
	return pool.New(pool.Config{
		Records: records, Services: o.services, Close: end, Random: o.random,
		Info: provider.Info{Name: "redis", URL: o.Place(), Scope: provider.ScopeShared},
	})
}

// keyed is a pool of keys of its own on a server.
type keyed struct {
	cfg      redisconn.Config
	server   *redistest.Server
	declared bool
}

func (k *keyed) open(services provider.Services) (provider.Provider, error) {
	p, err := openLeases(options{Config: k.cfg, services: services, random: func(int64) int64 { return 0 }})
	if err != nil {
		return nil, err
	}
	if !k.declared {
		k.declared = true
		err = p.Init(context.Background(), "")
	}
	return p, err
}

// remove deletes the keys.
func (k *keyed) remove() {
	c := k.server.Raw()
	defer c.Close()
	if keys, err := c.Keys(context.Background(), k.cfg.Prefix+"*").Result(); err == nil && len(keys) > 0 {
		_ = c.Del(context.Background(), keys...)
	}
}

func leasesOn(settable bool) providertest.Factory {
	return func(t *testing.T) providertest.Store {
		k := &keyed{server: redistest.Shared(t)}
		k.cfg = k.server.Config()
		store := providertest.Store{Open: k.open, Checks: 25, Close: k.remove}
		if settable {
			clock := new(atomic.Int64)
			store.SetClock, k.cfg.NowMS = clock.Store, clock.Load
		}
		return store
	}
}

func TestLeasesConform(t *testing.T) {
	providertest.Run(t, leasesOn(true)) // seeds 000-7.2-1 and 003-2-2
}

// By the server's own clock.
func TestLeasesConformInRealTime(t *testing.T) {
	ring.Deep(t)
	if testing.Short() {
		t.Skip("waits for leases to end")
	}
	providertest.Run(t, leasesOn(false))
}
