package keeper

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
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
}

// Clock is the believed time.
type Clock interface {
	NowMS() int64             // Unix ms
	Elapsed() time.Duration   // by a clock that nobody sets
	Confirm(providerMS int64) // a provider with a clock of its own showed this just now
}

// Observer is told what happens, for the metrics. Its methods return at once.
type Observer interface {
	Acquired(result string)                  // one of the Result constants
	Called(op string, d time.Duration)       // a provider call took d
	Lost(reason string)                      // a held lease is no longer ours
	Mismatch()                               // a lease on another timeline was refused
	StateFailed()                            // the local state could not be written
	Skew(created int64, local time.Duration) // a grant's time minus the local clock
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

// Config of a keeper.
type Config struct {
	Service       string
	Meta          map[string]string
	MaxThroughput int64 // IDs per millisecond to hold leases for
	RetryInterval time.Duration
	RetryMax      time.Duration
	CallTimeout   time.Duration // deadline of one provider call
	VerifyEvery   time.Duration
	NoFallback    bool // without a lease there are no IDs
}

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

// Keeper supplies one service. Step, Run and Shutdown are for one goroutine;
// Status, Turns and SetConfig are for any.
type Keeper struct {
	cfg Config
	Deps

	newCfg atomic.Pointer[Config] // takes the place of cfg at the next step
	turns  atomic.Uint64

	saved    state.Saved              // held and cached leases, timeline: what the store holds
	request  *provider.AcquireRequest // sent, and nobody knows whether it was granted
	askedMS  int64                    // Unix ms: when request was sent first
	cause    error                    // why the last acquire failed
	failures int                      // in a row
	term     time.Duration            // of the last grant
	skewMS   int64                    // provider's clock minus ours, at the last grant

	notBefore    time.Duration // Elapsed: backoff after a failure
	lastAcquire  time.Duration // Elapsed: the last success, for the rate limit
	acquired     bool          // there was one
	growth       bool          // the generator asked for more
	growthShort  int           // growth acquires in a row that brought less than asked
	growthBefore time.Duration // Elapsed: backoff of growth
	nextVerify   time.Duration // Elapsed
	answered     bool          // the provider has answered a call of this life
	lastAnswer   time.Duration // Elapsed: when it did last
	begun        bool          // there was a lease to keep alive in this life
	refused      []lease.Lease // to be given back
	sealed       bool          // a stop has begun: the generator gets no lease any more
	unsaved      bool          // the store does not hold what saved has
	nextSave     time.Duration // Elapsed: when to try again, if so

	mu     sync.Mutex
	status Status // guarded by mu
}

// New returns a keeper that has published what the store remembers. saved
// leases that expired stay with it until the first success, for fallback.
func New(cfg Config, deps Deps) *Keeper {
	k := &Keeper{cfg: cfg, Deps: deps, saved: deps.Store.Load()}
	k.nextVerify = k.Clock.Elapsed() + cfg.VerifyEvery
	if len(k.all()) > 0 {
		k.nextVerify = k.Clock.Elapsed() // whose they are now, only the provider knows
	}
	if len(k.saved.Held) > 0 {
		now := k.Clock.NowMS()
		for _, l := range k.saved.Held {
			k.Log.Info("lease adopted from an earlier run", leaseFields(l, zap.Bool("valid", l.Allows(now)))...)
		}
		k.term = time.Duration(k.saved.Held[0].Term()) * time.Millisecond
		k.resumePace(now)
	}
	k.publish()
	return k
}

// resumePace lets the rate limit go on from the youngest adopted lease that is
// of use, so that a daemon which crashes again and again before its clock has
// reached that lease does not take a slot each time.
func (k *Keeper) resumePace(now int64) {
	elapsed := k.Clock.Elapsed()
	for _, l := range k.saved.Held {
		if !covers(l.Created, l.Expired, now) {
			continue
		}
		at := elapsed - time.Duration(max(now-l.Created, 0))*time.Millisecond
		if !k.acquired || at > k.lastAcquire {
			k.lastAcquire, k.acquired = at, true
		}
	}
}

// Run keeps the service supplied until ctx is done. It returns nil.
func (k *Keeper) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	now := k.Clock.NowMS()
	if i := slices.IndexFunc(k.saved.Held, func(l lease.Lease) bool { return l.Allows(now) }); i >= 0 {
		k.begin(k.saved.Held[i])
	}
	for {
		select {
		case <-ctx.Done():
			if k.begun {
				k.Log.Info("keep alive stopped")
			}
			return nil
		case <-timer.C:
		case <-k.Generator.Growth():
			k.growth = true
		}
		timer.Reset(k.Step(ctx))
	}
}

// begin logs the lease that the keep alive begins with, once.
func (k *Keeper) begin(l lease.Lease) {
	if !k.begun {
		k.begun = true
		key := zap.String("key", k.cfg.Service+":"+strconv.FormatInt(l.ID, 10))
		k.Log.Info("starting worker id keep alive", leaseFields(l, key)...)
	}
}

// SetConfig replaces the configuration from the next step on, which is soon.
func (k *Keeper) SetConfig(cfg Config) { k.newCfg.Store(&cfg) }

// Turns grows while the keeper goes on: with each step, and with each call of the
// provider that ends, in whatever way. Between two of them lie pollInterval or
// CallTimeout.
func (k *Keeper) Turns() uint64 { return k.turns.Load() }

// Step does what is due now, and returns how long nothing more will be.
func (k *Keeper) Step(ctx context.Context) time.Duration {
	k.turns.Add(1)
	if cfg := k.newCfg.Swap(nil); cfg != nil {
		k.cfg = *cfg
	}
	if k.unsaved && k.Clock.Elapsed() >= k.nextSave {
		k.save() // a lease that is not ours any more must not be adopted after a crash
	}
	k.handBackReplaced(ctx)
	if elapsed := k.Clock.Elapsed(); elapsed >= k.nextVerify && k.cfg.VerifyEvery > 0 {
		k.nextVerify = elapsed + k.cfg.VerifyEvery
		k.verify(ctx)
	}
	if need := k.due(); need > 0 && ctx.Err() == nil {
		k.acquire(ctx, need)
		k.handBackReplaced(ctx)
	}
	k.giveBackRefused(ctx)
	k.growth = false
	k.report()
	return k.nap()
}

// remaining is the throughput of the leases that are usable now and not due
// for replacement.
func (k *Keeper) remaining(now int64) (sum int64) {
	for _, l := range k.saved.Held {
		if l.Allows(now) && now < renewalMS(l.Created, l.Expired) {
			sum += l.Throughput()
		}
	}
	return sum
}

// supply is the throughput of the leases that are usable now or will be soon,
// and not due for replacement: what growth has to look at, lest it acquire
// again and again until the clock has reached the first new lease.
func (k *Keeper) supply(now int64) (sum int64) {
	for _, l := range k.saved.Held {
		if covers(l.Created, l.Expired, now) {
			sum += l.Throughput()
		}
	}
	return sum
}

// due returns how much throughput to ask for now; 0 = do not ask.
func (k *Keeper) due() int64 {
	now, elapsed := k.Clock.NowMS(), k.Clock.Elapsed()
	remaining := k.remaining(now)
	need := k.cfg.MaxThroughput - remaining
	if need <= 0 || elapsed < k.notBefore {
		return 0
	}
	if grow := k.cfg.MaxThroughput - k.supply(now); k.growth && grow > 0 && remaining > 0 && elapsed >= k.growthBefore {
		return grow
	}
	aging := slices.ContainsFunc(k.saved.Held, func(l lease.Lease) bool {
		return now >= renewalMS(l.Created, l.Expired) && now < l.Expired
	})
	limited := k.acquired && elapsed < k.lastAcquire+k.term/acquiresPerTerm
	if limited || (remaining > 0 && !aging) {
		return 0
	}
	return need
}

// nap is how long nothing will be due, as far as the clocks tell.
func (k *Keeper) nap() time.Duration {
	now, elapsed := k.Clock.NowMS(), k.Clock.Elapsed()
	nap := pollInterval
	sooner := func(d time.Duration) {
		if d > 0 {
			nap = min(nap, d)
		}
	}
	if len(k.refused) > 0 {
		sooner(minNap)
	}
	sooner(k.notBefore - elapsed)
	if k.acquired {
		sooner(k.lastAcquire + k.term/acquiresPerTerm - elapsed)
	}
	if k.cfg.VerifyEvery > 0 {
		sooner(k.nextVerify - elapsed)
	}
	for _, l := range k.saved.Held {
		sooner(time.Duration(renewalMS(l.Created, l.Expired)-now) * time.Millisecond)
		sooner(time.Duration(l.Expired-now) * time.Millisecond)
		sooner(time.Duration(l.Created-now) * time.Millisecond)
	}
	return max(nap, minNap)
}

// publish gives the generator the leases as they are.
func (k *Keeper) publish() {
	k.report() // first: a status must not show IDs without the lease they come from
	if k.sealed {
		return
	}
	k.Generator.Update(k.saved.Held, k.saved.Cached, k.cause)
}

// save makes the leases durable, and reports whether they are.
func (k *Keeper) save() bool {
	err := k.Store.Save(k.saved)
	k.unsaved, k.nextSave = err != nil, k.Clock.Elapsed()+saveInterval
	if err != nil {
		k.Observer.StateFailed()
		k.Log.Error("the live state cannot be written; leases are used on, and none is released", zap.Error(err))
		return false
	}
	return true
}

// timed runs one provider call under its deadline.
func (k *Keeper) timed(ctx context.Context, op string, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.CallTimeout)
	defer cancel()
	began := k.Clock.Elapsed()
	err := call(ctx)
	k.turns.Add(1)
	if err == nil || settled(err) {
		k.answered, k.lastAnswer = true, k.Clock.Elapsed()
	}
	k.Observer.Called(op, k.Clock.Elapsed()-began)
	return err
}

func leaseFields(l lease.Lease, more ...zap.Field) []zap.Field {
	return append([]zap.Field{
		zap.Int64("worker_id", l.ID), zap.Stringer("layout", l.Layout()),
		zap.String("created", snowflake.FormatMS(l.Created)), zap.String("expired", snowflake.FormatMS(l.Expired)),
	}, more...)
}
