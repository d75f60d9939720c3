package lock_test

import (
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startMS is what the clocks of tests begin with.
const startMS = 1_800_000_000_000

// memory is a backend whose clients share one store.
func memory(change func(*lock.Memory, *locktest.Backend)) locktest.Factory {
	return func(*testing.T) locktest.Backend {
		var clock atomic.Int64
		clock.Store(startMS)
		m := lock.NewMemory(clock.Load)
		b := locktest.Backend{
			Open:    func() (lock.Store, error) { return m, nil },
			Advance: func(d time.Duration) { clock.Add(d.Milliseconds()) },
			Sweep:   func() error { m.Sweep(); return nil },
		}
		change(m, &b)
		return b
	}
}

func TestMemory(t *testing.T) {
	locktest.Run(t, memory(func(*lock.Memory, *locktest.Backend) {}))
}

// TestForgetful runs the suite on a store as Redis is: it may forget, and its
// tokens come from the clock where it knows nothing.
func TestForgetful(t *testing.T) {
	locktest.Run(t, memory(func(m *lock.Memory, b *locktest.Backend) {
		m.Remember("first")
		b.Jumps = true
		b.Forget = func() error {
			m.Forget("second", time.Hour)
			b.Advance(time.Hour)
			return nil
		}
	}))
}

// TestRealClock runs the suite as it runs on servers whose clock cannot be set.
func TestRealClock(t *testing.T) {
	ring.All(t)
	locktest.Run(t, func(*testing.T) locktest.Backend {
		m := lock.NewMemory(func() int64 { return time.Now().UnixMilli() })
		return locktest.Backend{Open: func() (lock.Store, error) { return m, nil }}
	})
}
