package redis

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

// backend is one prefix of a server. Without a clock that can be set, the
// server's own counts, and it can be restarted.
func backend(t *testing.T, server *redistest.Server, clock *atomic.Int64) locktest.Backend {
	cfg := server.Config()
	declare := func() error {
		s, err := open(t, cfg, Options{})
		if err != nil {
			return err
		}
		defer s.Close()
		return s.Init(context.Background())
	}
	b := locktest.Backend{
		Open:  func() (lock.Store, error) { return open(t, cfg, Options{}) },
		Jumps: true,
	}
	if clock == nil {
		b.Restart = func() error {
			server.Restart()
			return declare()
		}
		b.Sweep = func() error { return removeIdle(t, server, cfg, 1<<53) }
		b.Forget = func() error {
			server.Do(t, "FLUSHALL")
			return b.Restart()
		}
	} else {
		cfg.NowMS = clock.Load
		b.Advance = func(d time.Duration) { clock.Add(d.Milliseconds()) }
		b.Sweep = func() error { return removeIdle(t, server, cfg, clock.Load()) }
		b.Forget = func() error {
			server.Do(t, "FLUSHALL")
			s, err := open(t, cfg, Options{})
			if err != nil {
				return err
			}
			defer s.Close()
			if _, err := s.Do(testContext(t), lock.Request{Op: lock.Release, Tenant: "t", Key: "k", Owner: "o"}); !errors.Is(err, lock.ErrNotOwned) {
				return err
			}
			clock.Add(lock.MaxTTL.Milliseconds()) // past the fence, which has begun
			return nil
		}
	}
	if err := declare(); err != nil {
		t.Fatal(err)
	}
	return b
}

// removeIdle does what Redis does by itself when a record's time has come, by the
// test's clock.
func removeIdle(t *testing.T, server *redistest.Server, cfg redisconn.Config, nowMS int64) error {
	for _, name := range recordsOf(t, server, cfg) {
		at, err := strconv.ParseInt(server.Do(t, "PEXPIRETIME", name), 10, 64)
		if err != nil {
			return err
		}
		if at <= nowMS {
			server.Do(t, "DEL", name)
		}
	}
	return nil
}

func recordsOf(t *testing.T, server *redistest.Server, cfg redisconn.Config) []string {
	raw := server.Raw()
	defer raw.Close()
	names, err := raw.Keys(testContext(t), strings.ReplaceAll(cfg.Prefix, "{", "?")+"@lock:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestConformance(t *testing.T) {
	t.Run("a set clock", func(t *testing.T) {
		locktest.Run(t, func(t *testing.T) locktest.Backend {
			var clock atomic.Int64
			clock.Store(testTime)
			return backend(t, redistest.Shared(t), &clock)
		})
	})
	t.Run("the server's clock", func(t *testing.T) {
		server := persistent(t)
		locktest.Run(t, func(t *testing.T) locktest.Backend { return backend(t, server, nil) })
	})
}
