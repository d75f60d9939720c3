package keeper

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
)

var (
	errMismatch = errors.New("the lease has another epoch or bit_ts than this service's IDs")
	errNoCover  = errors.New("the lease does not cover this host's clock")
)

// acquire asks the provider for need IDs per millisecond, and deals with the
// answer.
func (k *Keeper) acquire(ctx context.Context, need int64) {
	growing := k.growth && k.remaining(k.Clock.NowMS()) > 0
	repeated := k.request != nil
	if !repeated {
		k.request = &provider.AcquireRequest{
			Service: k.cfg.Service, Meta: k.cfg.Meta, ThroughputPerMS: need, RequestID: k.newRequestID(),
		}
		k.askedMS = k.Clock.NowMS()
	}
	var leases []lease.Lease
	err := k.timed(ctx, "acquire", func(ctx context.Context) (err error) {
		leases, err = k.Provider.Acquire(ctx, *k.request)
		return err
	})
	if err != nil && ctx.Err() != nil {
		return // told to stop: that says nothing about the provider
	}
	if err == nil || settled(err) {
		k.request = nil
	}
	if repeated && errors.Is(err, provider.ErrConflict) {
		// The answer that was lost granted leases which have ended since. That is
		// no failure of the provider's, and a new request may well be granted.
		k.acquire(ctx, need)
		return
	}
	if err == nil && len(leases) == 0 {
		err = fmt.Errorf("%w: the provider answered without one", lease.ErrMalformed)
	}
	if err != nil {
		k.failed(err)
		return
	}
	k.learnClock(leases, repeated)
	now := k.Clock.NowMS() // after learnClock, which may have set it right
	good, bad := k.sort(leases, now)
	// Callers wait for the one or the other; giving back takes time.
	if len(good) > 0 {
		k.accept(ctx, good, now)
		k.pace(growing, good[0])
	} else {
		k.failed(bad[0].err)
	}
	for _, r := range bad {
		k.refuse(r)
	}
}

// newRequestID makes 128 random bits, under which a lost answer can be asked
// for again.
func (k *Keeper) newRequestID() string {
	var b [16]byte
	for i := range 2 {
		r := k.Rand.Uint64()
		for j := range 8 {
			b[8*i+j] = byte(r >> (8 * j))
		}
	}
	return hex.EncodeToString(b[:])
}

// settled reports whether an error says for certain that nothing was granted,
// or that asking again under the same request ID is no use.
func settled(err error) bool {
	var full *provider.FullError
	var fenced *provider.FencedError
	var busy *provider.BusyError
	return errors.As(err, &full) || errors.As(err, &fenced) || errors.As(err, &busy) ||
		errors.Is(err, provider.ErrConflict) || errors.Is(err, provider.ErrInvalid)
}

// learnClock compares the time of a grant with the local clock, which was
// between k.askedMS and now when the grant was made.
func (k *Keeper) learnClock(leases []lease.Lease, repeated bool) {
	i := slices.IndexFunc(leases, func(l lease.Lease) bool { return l.Validate() == nil })
	if i < 0 {
		return
	}
	created, asked, now := leases[i].Created, k.askedMS, k.Clock.NowMS()
	if k.Provider.Info().OwnClock {
		k.Clock.Confirm(created)
		asked += k.Clock.NowMS() - now
		now = k.Clock.NowMS()
	}
	if repeated {
		// Asked for the first time long ago, maybe: anything in between agrees
		// with the answer, and what was known before is kept where it does.
		k.skewMS = min(max(k.skewMS, created-now), created-asked)
	} else {
		k.skewMS = created - (asked+now)/2
	}
	k.Observer.Skew(created, time.Duration(k.skewMS)*time.Millisecond)
}

type refusal struct {
	lease lease.Lease
	err   error
	known bool // it is held or cached already: not ours to give back as unused
}

// sort tells the leases that can be used from those that cannot.
func (k *Keeper) sort(leases []lease.Lease, now int64) (good []lease.Lease, bad []refusal) {
	known := k.all()
	for _, l := range leases {
		if err := k.check(l, now); err != nil {
			bad = append(bad, refusal{l, err, !errors.Is(err, lease.ErrMalformed) && has(known, l)})
			continue
		}
		good = append(good, l)
	}
	return good, bad
}

func (k *Keeper) check(l lease.Lease, now int64) error {
	if err := l.Validate(); err != nil {
		return err
	}
	if !covers(l.Created, l.Expired, now) {
		return fmt.Errorf("%w: %v, and the clock shows %s", errNoCover, l, snowflake.FormatMS(now))
	}
	tl := l.Timeline()
	if tl == k.saved.Timeline {
		k.saved.Source = state.SourceLease
		return nil
	}
	if k.saved.Source == state.SourceLease || !k.rebase(tl) {
		return fmt.Errorf("%w: lease has epoch %s and bit_ts %d, the service has epoch %s and bit_ts %d; "+
			"if the change is meant, stop the daemon and run kazahanad state accept-epoch", errMismatch,
			snowflake.FormatMS(tl.EpochMS), tl.BitTS, snowflake.FormatMS(k.saved.Timeline.EpochMS), k.saved.Timeline.BitTS)
	}
	return nil
}

// rebase moves the service to the timeline of its first lease, and reports
// whether it did. It is in the local state before an ID is made on it: after a
// crash the old one would make smaller IDs.
func (k *Keeper) rebase(tl snowflake.Timeline) bool {
	before := k.saved
	k.saved.Timeline, k.saved.Source = tl, state.SourceLease
	k.saved.Held, k.saved.Cached = nil, nil // they are of another timeline
	if k.save() && k.Generator.Rebase(tl) {
		return true
	}
	k.saved = before
	k.save()
	return false
}

// accept takes the leases into use. Expired ones are pruned now and only now,
// when there is something to live from (seed 000, section 5.9): the last of
// them is kept for fallback, the others go back.
func (k *Keeper) accept(ctx context.Context, good []lease.Lease, now int64) {
	var pruned, leaving []lease.Lease
	held := slices.Clone(good)
	for _, l := range k.saved.Held {
		switch {
		case has(good, l):
			// the answer to a repeated request
		case now >= l.Expired:
			pruned = append(pruned, l)
		default:
			held = append(held, l)
		}
	}
	if len(pruned) > 0 {
		slices.SortFunc(pruned, func(a, b lease.Lease) int { return int(min(max(a.Expired-b.Expired, -1), 1)) })
		last := pruned[len(pruned)-1]
		leaving = pruned[:len(pruned)-1]
		if k.saved.Cached != nil {
			leaving = append(leaving, *k.saved.Cached)
		}
		k.saved.Cached = &last
	}
	k.saved.Held, k.saved.Offered = held, nil
	k.cause, k.failures, k.notBefore = nil, 0, 0
	saved := k.save()
	k.publish()
	for i, l := range good {
		if i == maxLogged {
			k.Log.Info("further worker ids allocated", zap.Int("count", len(good)-i))
			break
		}
		k.Log.Info("worker id allocated", leaseFields(l)...)
	}
	k.begin(good[0])
	k.Observer.Acquired(ResultOK)
	if saved {
		k.releaseAll(ctx, leaving)
	}
}

// pace sets the rate limits after a success.
func (k *Keeper) pace(growing bool, l lease.Lease) {
	elapsed := k.Clock.Elapsed()
	k.term = time.Duration(l.Term()) * time.Millisecond
	if !growing {
		k.lastAcquire, k.acquired = elapsed, true
	}
	if k.supply(k.Clock.NowMS()) >= k.cfg.MaxThroughput {
		k.growthShort = 0
		return
	}
	k.growthShort++
	k.growthBefore = elapsed + backoff(k.growthShort, k.cfg.RetryInterval, k.cfg.RetryMax, k.Rand.Float64())
}

// refuse logs a lease that this daemon cannot use, and queues it for release. A
// lease that is held already (an old answer that came again) is not released.
func (k *Keeper) refuse(r refusal) {
	l := r.lease
	if errors.Is(r.err, errMismatch) {
		offered := l.Timeline()
		if k.saved.Offered == nil || *k.saved.Offered != offered {
			k.saved.Offered = &offered
			k.save()
		}
		k.Observer.Mismatch()
		k.Log.Error("epoch mismatch: lease refused", leaseFields(l, zap.Error(r.err))...)
	} else {
		k.Log.Warn("lease refused", leaseFields(l, zap.Error(r.err))...)
	}
	if !errors.Is(r.err, lease.ErrMalformed) && !r.known {
		k.refused = append(k.refused, l)
	}
}

// giveBackRefused gives back some of the refused leases: acquires and verifies
// come in between. Where the provider hangs, the others run out by themselves.
//
// A refused lease was never published, so its own start bounds what was embedded
// under it, and is near the provider's time however wrong this host's clock is;
// but for one that was granted long ago and is told of only now, so is any later
// time.
func (k *Keeper) giveBackRefused(ctx context.Context) {
	for n := 0; n < releaseChunk && len(k.refused) > 0 && ctx.Err() == nil; n++ {
		l := k.refused[0]
		k.refused = k.refused[1:]
		at := l.Created
		if theirs := k.Clock.NowMS() + k.skewMS; theirs-at > provider.ReleaseWindow.Milliseconds()/2 {
			at = theirs
		}
		if err := k.release(ctx, l, at); gone(err) {
			k.refused = nil
		}
	}
}

// failed notes that an acquire brought nothing, and when to try again.
func (k *Keeper) failed(err error) {
	elapsed := k.Clock.Elapsed()
	k.failures++
	wait := backoff(k.failures, k.cfg.RetryInterval, k.cfg.RetryMax, k.Rand.Float64())
	result := ResultUnavailable
	var full *provider.FullError
	var fenced *provider.FencedError
	var busy *provider.BusyError
	switch {
	case errors.As(err, &fenced):
		result = ResultFenced
		end := time.Duration(fenced.UntilMS-k.Clock.NowMS()-k.skewMS) * time.Millisecond
		wait = fenceWait(end, wait, k.cfg.RetryInterval, k.cfg.RetryMax, k.Rand.Float64())
	case errors.As(err, &busy):
		result = ResultRefused
		wait = max(wait, min(busy.RetryAfter, maxRetryAfter))
	case errors.As(err, &full), errors.Is(err, provider.ErrConflict), errors.Is(err, provider.ErrInvalid),
		errors.Is(err, errNoCover), errors.Is(err, lease.ErrMalformed):
		result = ResultRefused
	case errors.Is(err, errMismatch):
		result = ResultMismatch
	case errors.Is(err, context.DeadlineExceeded):
		result = ResultTimeout
	}
	k.notBefore = elapsed + wait
	k.cause = err
	k.publish()
	k.Observer.Acquired(result)
	fields := []zap.Field{zap.Error(err), zap.Int("failures", k.failures), zap.Duration("retry_in", wait)}
	had := k.term > 0 || k.saved.Cached != nil // a lease, in this life or the one before
	if had && k.cfg.NoFallback && !k.anyUsable() {
		k.Log.Error("keep alive failed, circuit breaking", fields...)
		return
	}
	k.Log.Error("failed to allocate worker id", fields...)
}

func (k *Keeper) anyUsable() bool {
	now := k.Clock.NowMS()
	return slices.ContainsFunc(k.saved.Held, func(l lease.Lease) bool { return l.Allows(now) })
}
