package keeper

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/operator/systemd"
	"github.com/kazahana/kazahana/internal/provider/providertest"
)

// watchdog is the interval of the service manager's watchdog.
const watchdog = 30 * time.Second

// watched has the keeper feed a watchdog, as the daemon does, and returns how long
// ago it was fed.
func (r *rig) watched() (starved func() time.Duration, stop func()) {
	var fed atomic.Int64 // Unix ns
	w := systemd.Watch{
		Watchdog: watchdog, Status: func() string { return "" }, Log: zap.NewNop(),
		Parts: []systemd.Part{{Name: "keeper", Turns: r.keeper.Turns, Patience: r.setup.CallTimeout + watchdog/2}},
		Notify: func(assignments ...string) (bool, error) {
			if slices.Contains(assignments, "WATCHDOG=1") {
				fed.Store(time.Now().UnixNano())
			}
			return true, nil
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	return func() time.Duration { return time.Since(time.Unix(0, fed.Load())) }, func() { cancel(); <-done }
}

// TestTurnsGoOnWhileTheProviderIsDown: however a provider fails, the keeper never
// rests for longer than a call may take and a poll, and the watchdog is fed.
func TestTurnsGoOnWhileTheProviderIsDown(t *testing.T) {
	for name, fault := range map[string]providertest.Fault{"refuses": unreachable, "hangs": providertest.Hang()} {
		t.Run(name, hosted(nil, func(t *testing.T, r *rig) {
			r.start()
			starved, stop := r.watched()
			defer stop()
			r.pass(time.Minute)
			r.remote.fail(fault)
			most := r.setup.CallTimeout + pollInterval
			for range 500 {
				before := r.keeper.Turns()
				r.pass(most)
				if r.keeper.Turns() == before {
					t.Fatalf("no turn within %v, at %v", most, r.elapsed())
				}
				if gone := starved(); gone > watchdog/2 {
					t.Fatalf("the watchdog was last fed %v ago, at %v", gone, r.elapsed())
				}
			}
		}))
	}
}

// TestStuckKeeperStarvesTheWatchdog: a call that does not heed its deadline is what
// the turns are counted for.
func TestStuckKeeperStarvesTheWatchdog(t *testing.T) {
	onHost(t, nil, func(t *testing.T, r *rig) {
		r.start()
		starved, stop := r.watched()
		defer stop()
		r.pass(time.Minute)
		release := make(chan struct{})
		r.remote.answer(func(leases []lease.Lease) []lease.Lease {
			<-release
			return leases
		})
		r.pass(10 * time.Minute) // a renewal has begun by now
		before := r.keeper.Turns()
		r.pass(10 * time.Minute)
		if n := r.keeper.Turns() - before; n != 0 {
			t.Errorf("%d turns of a keeper that is stuck", n)
		}
		if gone := starved(); gone < 2*watchdog {
			t.Errorf("the watchdog was fed %v ago", gone)
		}
		close(release)
		r.pass(watchdog)
		if r.keeper.Turns() == before {
			t.Error("the call came back, and the keeper did not go on")
		}
		if gone := starved(); gone > watchdog/2 {
			t.Errorf("it goes on, and the watchdog was last fed %v ago", gone)
		}
	})
}
