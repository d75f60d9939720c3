package proof

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/keeper"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
)

// host is one machine: what survives a crash, and what does not.
type host struct {
	w    *world
	name string
	cfg  generator.Config

	offset int64 // its clock minus the true time; jumps

	// Durable.
	saved state.Saved
	mark  int64
	last  snowflake.ID // of all lives: the stream must increase over them

	// Of this life.
	core   *generator.Core
	keeper *keeper.Keeper
	held   []lease.Lease
	cached *lease.Lease
	cause  error
	stale  []lease.Lease // with sealedBeforeRelease broken: still in use
	gone   bool          // the process has been killed: calls in flight come to nothing
}

var errDiskFull = errors.New("no space left")

var errCrashed = errors.New("the process is gone")

func (h *host) clock() int64 { return h.w.now + h.offset }

// start begins a life.
func (h *host) start() {
	h.gone, h.stale = false, nil
	floor := h.mark
	if h.w.broken == markExclusive && floor > 0 {
		floor--
	}
	h.core = generator.NewCore(h.cfg, h.w.timeline, floor, h.w.rnd)
	h.core.EndStartup()
	h.keeper = keeper.New(keeper.Config{
		Service: h.name, MaxThroughput: h.cfg.MaxThroughput, RetryInterval: 4 * time.Millisecond,
		RetryMax: 20 * time.Millisecond, CallTimeout: time.Hour, VerifyEvery: 15 * time.Millisecond,
	}, keeper.Deps{
		Provider: link{h}, Generator: h, Store: h, Clock: believed{h}, Observer: silent{},
		Log: zap.NewNop(), Rand: h.w.rnd,
	})
}

// crash ends a life at once; foreign says that the state comes up somewhere
// else, or after a boot, so that nothing is adopted.
func (h *host) crash(foreign bool) {
	if foreign && h.w.broken != foreignStateNotAdopted {
		h.saved.Held, h.saved.Cached = nil, nil
	}
	h.start()
}

// The durable state.

func (h *host) Load() state.Saved { return h.saved }

func (h *host) Save(s state.Saved) error {
	if h.gone {
		return errCrashed
	}
	if h.w.rnd.IntN(30) == 0 {
		return errDiskFull
	}
	switch h.w.broken {
	case releasedNeverAdopted:
		for _, l := range h.saved.Held { // what leaves, stays
			if !contains(s.Held, l) && !isCached(s.Cached, l) {
				s.Held = append(s.Held[:len(s.Held):len(s.Held)], l)
			}
		}
	case releasedNeverCached:
		for _, l := range h.saved.Held {
			if !contains(s.Held, l) {
				s.Cached = &l
			}
		}
	}
	h.saved = s
	return nil
}

func contains(leases []lease.Lease, l lease.Lease) bool {
	for _, other := range leases {
		if other.Key() == l.Key() {
			return true
		}
	}
	return false
}

func isCached(cached *lease.Lease, l lease.Lease) bool {
	return cached != nil && cached.Key() == l.Key()
}

// The keeper's view of the generator.

func (h *host) Update(held []lease.Lease, cached *lease.Lease, cause error) {
	if h.gone {
		return
	}
	if h.w.broken == sealedBeforeRelease {
		h.stale = h.held
	}
	h.held, h.cached, h.cause = held, cached, cause
	h.core.SetLeases(h.held, h.cached, h.cause)
}

func (h *host) Rebase(tl snowflake.Timeline) bool { return h.core.Rebase(tl, h.clock()) }
func (h *host) LastMS() int64 {
	if h.w.broken == releaseCoversLastEmbedded {
		return 0
	}
	return h.core.LastMS()
}
func (h *host) Growth() <-chan struct{} { return nil }

// emit asks the generator for up to n IDs, as a caller would, and tells the
// world what it got.
func (h *host) emit(n int64, allowFallback bool) {
	if h.gone {
		return
	}
	now := h.clock()
	h.breakSeal()
	if h.w.broken == embeddedTimestampChecked {
		h.openLeases(now)
		now = h.clock()
	}
	if h.w.broken != noRule { // else the leases are those that were published, and what the core derived from them stays
		defer h.core.SetLeases(h.held, h.cached, h.cause)
	}
	for n > 0 {
		r, _ := h.core.Take(now, n, allowFallback)
		if r.Count == 0 {
			return
		}
		n -= r.Count
		h.mark = max(h.mark, h.w.timeline.UnixMS(r.Start)+1)
		for i := range r.Count {
			h.w.issued(h, r.Start+snowflake.ID(i), r.Kind)
		}
	}
}

// openLeases hands the generator the leases that the clock allows now, as if
// they allowed everything, and lets time pass before an ID is made: what
// happens where a lease is checked by a clock and not by what is embedded.
func (h *host) openLeases(now int64) {
	var open []lease.Lease
	for _, l := range h.held {
		if l.Allows(now) {
			l.Created, l.Expired = 0, 1<<50
			l.ReservedUntil = l.Expired
			open = append(open, l)
		}
	}
	h.core.SetLeases(open, h.cached, h.cause)
	switch h.w.rnd.IntN(4) {
	case 0:
		h.jump()
	case 1:
		h.w.tick()
	}
}

func (h *host) breakSeal() {
	if h.w.broken == sealedBeforeRelease {
		leases := append([]lease.Lease(nil), h.held...)
		for _, l := range h.stale {
			if !contains(leases, l) {
				leases = append(leases, l)
			}
		}
		h.core.SetLeases(leases, h.cached, h.cause)
	}
}

// believed is the host's clock as the keeper sees it: here it is believed
// whatever it shows.
type believed struct{ h *host }

func (b believed) NowMS() int64           { return b.h.clock() }
func (b believed) Elapsed() time.Duration { return time.Duration(b.h.w.now) * time.Millisecond }
func (b believed) Confirm(int64)          {}

// link is the way to the provider. Time passes on it, other hosts act, the
// own clock jumps and callers take IDs; requests and answers get lost, and the
// process may be gone when the answer comes.
type link struct{ h *host }

func (l link) Info() provider.Info { return l.h.w.provider.Info() }
func (l link) Close() error        { return nil }

var errLost = errors.New("lost on the way")

// travel lets things happen, and reports whether the message arrives.
func (l link) travel() error {
	if l.h.gone {
		return errCrashed
	}
	for range l.h.w.rnd.IntN(5) {
		l.h.w.meanwhile(l.h)
	}
	if l.h.w.rnd.IntN(40) == 0 {
		l.h.gone = true // killed; whoever drives the keeper starts the next life
		return errCrashed
	}
	if l.h.w.now < l.h.w.downUntil || l.h.w.rnd.IntN(12) == 0 {
		return errLost
	}
	return nil
}

func (l link) Acquire(ctx context.Context, req provider.AcquireRequest) ([]lease.Lease, error) {
	if err := l.travel(); err != nil {
		return nil, err
	}
	leases, err := l.h.w.provider.Acquire(ctx, req)
	if err := l.travel(); err != nil {
		return nil, err
	}
	return leases, err
}

func (l link) Release(ctx context.Context, req provider.ReleaseRequest) error {
	if err := l.travel(); err != nil {
		return err
	}
	err := l.h.w.provider.Release(ctx, req)
	if lost := l.travel(); lost != nil {
		return lost
	}
	return err
}

func (l link) Verify(ctx context.Context, service string, leases []lease.Lease) ([]lease.Lease, error) {
	if err := l.travel(); err != nil {
		return nil, err
	}
	return l.h.w.provider.(provider.Verifier).Verify(ctx, service, leases)
}

type silent struct{}

func (silent) Acquired(string)              {}
func (silent) Called(string, time.Duration) {}
func (silent) Lost(string)                  {}
func (silent) Mismatch()                    {}
func (silent) StateFailed()                 {}
func (silent) Skew(int64, time.Duration)    {}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x9E3779B97F4A7C15)) }
