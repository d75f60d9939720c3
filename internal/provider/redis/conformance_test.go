package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/providertest"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

var errDied = errors.New("the process died")

// testStore is a pool of keys of its own on a server.
type testStore struct {
	t        *testing.T
	server   *server
	prefix   string
	clock    *atomic.Int64 // nil for the server's own
	declared map[string]bool
	forgot   bool
}

func (s *testStore) open(services provider.Services) (*Provider, error) {
	cfg := configOf(s.server, services)
	cfg.Prefix = s.prefix
	if s.clock != nil {
		cfg.NowMS = s.clock.Load
	}
	p, err := Open(context.Background(), cfg)
	if err != nil {
		return nil, err
	}
	for _, t := range cfg.Services.All() {
		if s.forgot || s.declared[t.Pool] {
			continue
		}
		s.declared[t.Pool] = true
		service := ""
		for name, named := range services.Named {
			if named.Pool == t.Pool {
				service = name
			}
		}
		if err := p.Init(context.Background(), service); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

// forget deletes the keys, as FLUSHALL would if they were alone.
func (s *testStore) forget() error {
	s.forgot = true
	c := s.server.Raw()
	defer c.Close()
	keys, err := c.Keys(context.Background(), s.prefix+"*").Result()
	if err != nil || len(keys) == 0 {
		return err
	}
	return c.Del(context.Background(), keys...).Err()
}

// crash has a process die at a step of an acquire.
func (s *testStore) crash(step string, services provider.Services, req provider.AcquireRequest) error {
	p, err := s.open(services)
	if err != nil {
		return err
	}
	p.at = func(at string) error {
		if at == step {
			return errDied
		}
		return nil
	}
	_, err = p.Acquire(context.Background(), req)
	if !errors.Is(err, errDied) {
		return fmt.Errorf("it did not die: %w", err)
	}
	return p.Close()
}

func factory(settable bool) providertest.Factory {
	return func(t *testing.T) providertest.Store {
		server := redistest.Shared(t)
		s := &testStore{
			t: t, server: server, prefix: server.Config().Prefix, declared: map[string]bool{},
		}
		store := providertest.Store{
			Open: func(services provider.Services) (provider.Provider, error) {
				p, err := s.open(services)
				if err != nil {
					return nil, err
				}
				return p, nil
			},
			CrashSteps: []string{stepAsked, stepGranted, stepConfirmed},
			Crash:      s.crash,
			Forget:     s.forget,
			Empty:      s.forget,
			Check:      func() error { return checkRings(server, s.prefix+provider.DefaultPool+":") },
			Checks:     25,
			Close:      func() { _ = s.forget() },
		}
		if settable {
			s.clock = new(atomic.Int64)
			store.SetClock = s.clock.Store
		}
		return store
	}
}

// Seeds 000-6.1-2, 000-7.2-1, 003-2-2, 003-4.3-2 and 003-6.1-1.
func TestConformance(t *testing.T) { providertest.Run(t, factory(true)) }

// By the server's own clock.
// Seed 001-14.
func TestConformanceInRealTime(t *testing.T) {
	ring.Deep(t)
	if testing.Short() {
		t.Skip("waits for leases to end")
	}
	providertest.Run(t, factory(false))
}

// checkRings compares the rings of a pool with its records, machine ID by
// machine ID.
func checkRings(server *server, base string) error {
	ctx := context.Background()
	c := server.Raw()
	defer c.Close()
	type record struct {
		bitSeq         int
		id, start, end int64
	}
	var records []record
	members, err := c.ZRange(ctx, base+"slots", 0, -1).Result()
	if err != nil {
		return err
	}
	for _, m := range members {
		var r record
		if _, err := fmt.Sscanf(m, "%d:%d", &r.bitSeq, &r.id); err != nil {
			return fmt.Errorf("%q: %w", m, err)
		}
		r.start = r.id << r.bitSeq
		if r.end, err = c.HGet(ctx, fmt.Sprintf("%sslot:%d:%d", base, r.bitSeq, r.id), "end").Int64(); err != nil {
			return fmt.Errorf("%q: %w", m, err)
		}
		records = append(records, r)
	}
	rings, err := c.HGetAll(ctx, base+"rings").Result()
	if err != nil {
		return err
	}
	for name := range rings {
		var bitSeq int
		var low, high int64
		if _, err := fmt.Sscanf(name, "%d:%d-%d", &bitSeq, &low, &high); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		var inside []string
		free := map[int64]int64{}
		for _, r := range records {
			first, last := r.start>>bitSeq, max((r.start+1<<r.bitSeq-1)>>bitSeq, r.start>>bitSeq)
			for id := max(first, low); id <= min(last, high); id++ {
				free[id] = max(free[id], r.end)
				if r.bitSeq < bitSeq {
					inside = append(inside, fmt.Sprintf("%016d:%016d:%d:%016d", id, r.end, r.bitSeq, r.id))
				}
			}
		}
		if err := checkRing(ctx, c, base+"ring:"+name+":", low, high, free, inside); err != nil {
			return fmt.Errorf("ring %s: %w", name, err)
		}
	}
	return nil
}

func checkRing(ctx context.Context, c *redis.Client, key string, low, high int64, free map[int64]int64, inside []string) error {
	runs, err := c.ZRange(ctx, key+"runs", 0, -1).Result()
	if err != nil {
		return err
	}
	next := low
	var byTime []string
	for _, m := range runs {
		var from, to, at int64
		if _, err := fmt.Sscanf(m, "%d:%d:%d", &from, &to, &at); err != nil {
			return fmt.Errorf("%q: %w", m, err)
		}
		if from != next || to < from {
			return fmt.Errorf("the run %s does not follow %d", m, next-1)
		}
		for id := from; id <= to; id++ {
			if free[id] != at {
				return fmt.Errorf("machine ID %d is free at %d by the records, and in the run %s", id, free[id], m)
			}
		}
		next = to + 1
		byTime = append(byTime, fmt.Sprintf("%016d:%016d", at, from))
	}
	if next != high+1 {
		return fmt.Errorf("the runs end at %d", next-1)
	}
	slices.Sort(byTime)
	if got, err := c.ZRange(ctx, key+"free", 0, -1).Result(); err != nil || !slices.Equal(got, byTime) {
		return fmt.Errorf("by time there are %v (%v), want %v", got, err, byTime)
	}
	slices.Sort(inside)
	if got, err := c.ZRange(ctx, key+"inside", 0, -1).Result(); err != nil || !slices.Equal(got, inside) {
		return fmt.Errorf("inside there are %v (%v), want %v", got, err, inside)
	}
	return nil
}
