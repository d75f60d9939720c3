package lock_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/postgrestest"
	"github.com/kazahana/kazahana/internal/testkit/redistest"
)

type sinceStart struct{ began time.Time }

func (s sinceStart) Elapsed() time.Duration { return time.Since(s.began) }

type storeCloser interface {
	lock.Store
	io.Closer
}

// A server that ends a subscription, as it does with idle sessions, delays no waiter: the host
// asks at once, and subscribes anew.
func TestServerEndsSubscription(t *testing.T) {
	for name, open := range map[string]func(*testing.T) (open func() (storeCloser, error), end func()){
		"redis": func(t *testing.T) (func() (storeCloser, error), func()) {
			server := redistest.New(t)
			cfg := server.Config()
			mustOpenRedis(t, cfg, true)
			return func() (storeCloser, error) { return openRedis(cfg) },
				func() { server.Do(t, "CLIENT", "KILL", "TYPE", "PUBSUB") }
		},
		"postgres": func(t *testing.T) (func() (storeCloser, error), func()) {
			server := postgrestest.New(t)
			cfg := server.Config()
			return func() (storeCloser, error) { return openPostgres(cfg) },
				func() {
					server.SQL("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'")
				}
		},
	} {
		t.Run(name, func(t *testing.T) {
			open, end := open(t)
			lock.PollSeldom(t)
			store, err := open()
			must.Succeed(t, err)
			other, err := open()
			must.Succeed(t, err)
			h := lock.NewHost(store, sinceStart{time.Now()}, await.Patience)
			t.Cleanup(func() { _ = errors.Join(h.Close(testContext(t)), store.Close(), other.Close()) })
			held, err := other.Do(testContext(t), lock.Request{Op: lock.Acquire, Tenant: "t", Key: "k", Owner: "a", LeaseID: lock.NewLeaseID(), TTLMS: time.Hour.Milliseconds()})
			must.Succeed(t, err)
			got := make(chan error, 1)
			go func() {
				_, err := h.Acquire(testContext(t), lock.Request{Tenant: "t", Key: "k", Owner: "b", TTLMS: 60_000, Wait: -1})
				got <- err
			}()
			await.Eventually(t, "the host hears of releases", func() bool { return h.Hears("t", "k") })
			end()
			_, err = other.Do(testContext(t), lock.Request{Op: lock.Release, Tenant: "t", Key: "k", Owner: "a", LeaseID: held.LeaseID})
			must.Succeed(t, err)
			must.Succeed(t, <-got)
		})
	}
}
