package keeper

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
)

// Generator is the keeper's view of the stream it supplies.
type Generator interface {
	// Update publishes the leases. When it returns, no ID is made from any
	// other one. cause says why there is none, nil while all is well.
	Update(held []lease.Lease, cached *lease.Lease, cause error)
	// Rebase moves the stream to another timeline, and reports whether that
	// keeps it increasing.
	Rebase(tl snowflake.Timeline) bool
	// LastMS is the largest Unix ms that any ID so far may embed.
	LastMS() int64
	// Growth has a token when the leases were used up.
	Growth() <-chan struct{}
}

// Store is the local state of one service.
type Store interface {
	Load() state.Saved
	Save(state.Saved) error // survives a kill -9 once it has returned nil
	// SaveAfterLoss is Save without leases that belong to another client now: even if it
	// fails, a kill -9 brings them back no more.
	SaveAfterLoss(state.Saved) error
}

// Clock is the believed time.
type Clock interface {
	NowMS() int64             // Unix ms
	Elapsed() time.Duration   // by a clock that cannot be set
	Confirm(providerMS int64) // the provider showed this just now
}

// Observer receives events for the metrics. Its methods return at once.
type Observer interface {
	Acquired(result string)            // one of the Result constants
	Called(op string, d time.Duration) // a provider call took d
	Lost(reason string)                // a held lease is no longer ours
	Mismatch()                         // a lease on another timeline was refused
	StateFailed()                      // the local state could not be written
	Skew(d time.Duration)              // the provider's clock minus the local one, at a grant
}

// Results of an acquire, as the metric names them.
const (
	ResultOK          = "ok"
	ResultRefused     = "refused"
	ResultUnavailable = "unavailable"
	ResultTimeout     = "timeout"
	ResultFenced      = "fenced"
	ResultMismatch    = "mismatch"
)

// Deps are the rooms around a keeper.
type Deps struct {
	Provider  provider.Provider
	Generator Generator
	Store     Store
	Clock     Clock
	Observer  Observer
	Log       *zap.Logger
	Rand      *rand.Rand
}

// Keeper supplies one service: it carries out what its core decides. Step, Run and
// Shutdown are for one goroutine; Status and Turns are for any.
type Keeper struct {
	Deps
	core  *Core
	turns atomic.Uint64

	mu     sync.Mutex
	status Status // guarded by mu
}

// New returns a keeper that has published the leases of the store.
func New(cfg Config, deps Deps) *Keeper {
	k := &Keeper{Deps: deps}
	var first Publish
	k.core, first = NewCore(cfg, deps.Store.Load(), deps.Rand, k.moment(context.Background()))
	k.tell()
	k.perform(context.Background(), first)
	return k
}

// Run keeps the service supplied until ctx is done. It returns nil.
func (k *Keeper) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	growth := false
	for {
		select {
		case <-ctx.Done():
			if l := k.core.kept; l != nil {
				k.Log.Info("keep alive stopped", k.core.leaseFields(*l)...)
			}
			return nil
		case <-timer.C:
		case <-k.Generator.Growth():
			growth = true
		}
		timer.Reset(k.step(ctx, Tick{growth}))
		growth = false
	}
}

// Turns grows while the keeper goes on: with each event. Between two of them lie
// pollInterval or CallTimeout.
func (k *Keeper) Turns() uint64 { return k.turns.Load() }

// Status may be called from any goroutine. The slices are not to be changed.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// Step does all that is due now, and returns for how long nothing more will be.
func (k *Keeper) Step(ctx context.Context) time.Duration { return k.step(ctx, Tick{}) }

func (k *Keeper) step(ctx context.Context, tick Tick) time.Duration {
	return k.until(ctx, tick).(Sleep).For
}

// Shutdown seals the generator against every lease, and gives them back where
// that costs the next start nothing. It is called after Run has returned.
func (k *Keeper) Shutdown(ctx context.Context) { k.until(ctx, Stop{}) }

// until carries out one action after the other, until one ends the turn.
func (k *Keeper) until(ctx context.Context, e Event) Action {
	for {
		k.turns.Add(1)
		action := k.core.Handle(k.moment(ctx), e)
		k.tell()
		if e = k.perform(ctx, action); e == nil {
			return action
		}
	}
}

// moment reads the clocks.
func (k *Keeper) moment(ctx context.Context) Moment {
	return Moment{MS: k.Clock.NowMS(), Elapsed: k.Clock.Elapsed(), LastMS: k.Generator.LastMS(), Halt: ctx.Err() != nil}
}

// tell passes on the core's report. The status comes before the next action: it must not show IDs
// without the lease they come from.
func (k *Keeper) tell() {
	k.mu.Lock()
	k.status = k.core.Status()
	k.mu.Unlock()
	report := k.core.Report()
	for _, seen := range report.Seen {
		seen(k.Observer)
	}
	for _, l := range report.Lines {
		k.Log.Log(l.Level, l.Text, l.Fields...)
	}
}

// perform carries out one action, and returns its outcome: nil after Sleep and Done.
func (k *Keeper) perform(ctx context.Context, action Action) Event {
	switch a := action.(type) {
	case Publish:
		k.Generator.Update(a.Held, a.Cached, a.Cause)
		return Published{}
	case Rebase:
		return Rebased{k.Generator.Rebase(a.Timeline)}
	case Save:
		if a.AfterLoss {
			return Saved{k.Store.SaveAfterLoss(a.Content)}
		}
		return Saved{k.Store.Save(a.Content)}
	case Confirm:
		k.Clock.Confirm(a.ProviderMS)
		return Confirmed(a)
	case Acquire:
		var e Acquired
		e.Err = k.timed(ctx, "acquire", func(ctx context.Context) (err error) {
			e.Leases, err = k.Provider.Acquire(ctx, a.Request)
			return err
		})
		return e
	case Verify:
		return k.verify(ctx, a.Leases)
	case Release:
		return Released{k.timed(ctx, "release", func(ctx context.Context) error { return k.Provider.Release(ctx, a.Request) })}
	}
	return nil
}

// verify asks the provider whether the leases are still ours, if it can tell.
func (k *Keeper) verify(ctx context.Context, leases []lease.Lease) (e Verified) {
	if !k.Provider.Info().Coordinated {
		return Verified{Err: errors.ErrUnsupported}
	}
	e.Err = k.timed(ctx, "verify", func(ctx context.Context) (err error) {
		e.Lost, err = provider.Verify(ctx, k.Provider, k.core.cfg.Service, leases)
		return err
	})
	return e
}

// timed runs one provider call under its deadline.
func (k *Keeper) timed(ctx context.Context, op string, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, k.core.cfg.CallTimeout)
	defer cancel()
	began := k.Clock.Elapsed()
	err := call(ctx)
	k.Observer.Called(op, k.Clock.Elapsed()-began)
	return err
}
