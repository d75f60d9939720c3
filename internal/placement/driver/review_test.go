package driver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
)

// stuckStore does not answer for one room.
type stuckStore struct{ lock.Store }

func (s stuckStore) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if r.Key == activationPrefix+room(0).String() {
		<-ctx.Done()
		return lock.Lease{}, ctx.Err()
	}
	return s.Store.Do(ctx, r)
}

// A key whose store does not answer keeps no other key waiting.
func TestStuckCommandDelaysNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		a := s.start("a:1", func(c *Config) { c.Locks = stuckStore{s.locks} })
		ready()
		_, _ = a.Resolve(t.Context(), room(0), 0)
		began := time.Now()
		if _, err := a.Resolve(t.Context(), room(1), time.Minute); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took >= commandTimeout {
			t.Errorf("room 1 has waited %v for room 0", took)
		}
		a.stop()
	})
}

// hangingStore answers nothing that is about an activation.
type hangingStore struct{ lock.Store }

func (s hangingStore) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if strings.HasPrefix(r.Key, activationPrefix) {
		<-ctx.Done()
		return lock.Lease{}, ctx.Err()
	}
	return s.Store.Do(ctx, r)
}

// Those who do not wait cannot pile up activations without end.
func TestQueueIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, s *site) {
		a := s.start("a:1", func(c *Config) { c.Locks = hangingStore{s.locks} })
		ready()
		n := 0
		var err error
		for ; !errors.Is(err, ErrOverloaded) && n < 2*MaxWaiting; n++ {
			_, err = a.Resolve(t.Context(), room(n), 0)
		}
		if n < MaxWaiting || n == 2*MaxWaiting {
			t.Errorf("%d activations were begun: %v", n, err)
		}
		time.Sleep(time.Hour) // all have failed
		if _, err := a.Resolve(t.Context(), room(0), 0); !errors.Is(err, placement.ErrPending) {
			t.Errorf("after the rush: %v", err)
		}
		a.stop()
	})
}
