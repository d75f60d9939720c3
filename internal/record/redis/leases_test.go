package redis_test

import (
	"context"
	"errors"
	"fmt"
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
		Records: records, Services: o.services, NowMS: o.NowMS, Close: end, Random: o.random,
		Info: provider.Info{Name: "redis", URL: o.Place(), Scope: provider.ScopeShared, OwnClock: true},
	})
}

// changing is records whose changes are seen.
type changing struct {
	record.Store
	before, after func() error // nil: nothing
	written       func([]record.Write)
}

func (c changing) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	if c.before != nil {
		if err := c.before(); err != nil {
			return 0, err
		}
	}
	at, err := c.Store.Change(ctx, ask, func(v record.View) ([]record.Write, error) {
		writes, err := rule(v)
		if err == nil && c.written != nil {
			c.written(writes)
		}
		return writes, err
	})
	if err == nil && c.after != nil {
		err = c.after()
	}
	return at, err
}

// keyed is a pool of keys of its own on a server.
type keyed struct {
	cfg              redisconn.Config
	server           *redistest.Server
	declared, forgot bool
}

func (k *keyed) open(services provider.Services, around func(record.Store) record.Store) (*pool.Provider, error) {
	p, err := openLeases(options{k.cfg, services, around, func(int64) int64 { return 0 }})
	if err != nil || k.forgot || k.declared {
		return p, err
	}
	k.declared = true
	return p, p.Init(context.Background(), "")
}

// forget deletes the keys, as FLUSHALL would if they were alone.
func (k *keyed) forget() error {
	k.forgot = true
	c := k.server.Raw()
	defer c.Close()
	keys, err := c.Keys(context.Background(), k.cfg.Prefix+"*").Result()
	if err != nil || len(keys) == 0 {
		return err
	}
	return c.Del(context.Background(), keys...).Err()
}

var errDied = errors.New("the process died")

// The steps of an acquire at which a process dies.
const (
	stepAsked   = "asked"   // nothing was sent
	stepGranted = "granted" // the caller does not know yet
)

// crash has a process die at a step of an acquire.
func (k *keyed) crash(step string, services provider.Services, req provider.AcquireRequest) error {
	die := func() error { return errDied }
	p, err := k.open(services, func(s record.Store) record.Store {
		if step == stepAsked {
			return changing{Store: s, before: die}
		}
		return changing{Store: s, after: die}
	})
	if err != nil {
		return err
	}
	if _, err = p.Acquire(context.Background(), req); !errors.Is(err, errDied) {
		return fmt.Errorf("it did not die: %w", err)
	}
	return p.Close()
}

func leasesOn(settable bool) providertest.Factory {
	return func(t *testing.T) providertest.Store {
		k := &keyed{server: redistest.Shared(t)}
		k.cfg = k.server.Config()
		store := providertest.Store{
			Open: func(services provider.Services) (provider.Provider, error) {
				p, err := k.open(services, nil)
				if err != nil {
					return nil, err
				}
				return p, nil
			},
			CrashSteps: []string{stepAsked, stepGranted}, Crash: k.crash,
			Forget: k.forget, Empty: k.forget, Checks: 25,
			AnyFree: true, RequestsEnd: true, History: 8,
			Close: func() { _ = k.forget() },
		}
		if settable {
			clock := new(atomic.Int64)
			store.SetClock, k.cfg.NowMS = clock.Store, clock.Load
		}
		return store
	}
}

// Seeds 000-6.1-2, 000-6.2-1, 000-7.2-1, 001-13, 003-2-2, 003-4.3-2 and 003-6.1-1.
func TestLeasesConform(t *testing.T) { providertest.Run(t, leasesOn(true)) }

// By the server's own clock.
// Seed 001-14.
func TestLeasesConformInRealTime(t *testing.T) {
	ring.Deep(t)
	if testing.Short() {
		t.Skip("waits for leases to end")
	}
	providertest.Run(t, leasesOn(false))
}
