package redis

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"

	redisconn "github.com/kazahana/kazahana/internal/conn/redis"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/recordtest"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Run(m)) }

const (
	began   = 1_800_000_000_000
	maxTerm = time.Hour
)

// owned closes the client with the store.
type owned struct {
	*Store
	client *redisconn.Client
}

func (o owned) Close() error {
	_ = o.Store.Close()
	return o.client.Close()
}

func open(cfg redisconn.Config) (owned, error) {
	client, err := redisconn.Open(cfg)
	if err != nil {
		return owned{}, err
	}
	return owned{New(client, Options{MaxTerm: maxTerm}), client}, nil
}

func mustOpen(t testing.TB, cfg redisconn.Config) owned {
	t.Helper()
	s, err := open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func mustInit(t testing.TB, s owned) {
	t.Helper()
	if err := s.Init(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestConformance(t *testing.T) {
	recordtest.Run(t, func(t *testing.T) recordtest.Target {
		cfg := redistest.Shared(t).Config()
		var clock atomic.Int64
		clock.Store(began)
		cfg.NowMS = clock.Load
		mustInit(t, mustOpen(t, cfg))
		return recordtest.Target{
			Open:    func() (record.Store, error) { return open(cfg) },
			Advance: func(d time.Duration) { clock.Add(d.Milliseconds()) },
			Between: true,
		}
	})
}
