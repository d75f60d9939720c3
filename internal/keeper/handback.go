package keeper

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/state"
)

// handBackReplaced gives back the leases that are no longer needed: those due
// for replacement once the whole throughput is there without them, and those
// that have expired once any other is usable. So a host takes a second slot
// only for as long as a replacement takes, whenever the others do it.
func (k *Keeper) handBackReplaced(ctx context.Context) {
	now := k.Clock.NowMS()
	if ctx.Err() != nil || !k.anyUsable() {
		return // Shutdown releases them; fallback lives from the expired ones
	}
	replaced := k.remaining(now) >= k.cfg.MaxThroughput
	k.handBack(ctx, func(l lease.Lease) bool {
		return now >= l.Expired || replaced && now >= renewalMS(l.Created, l.Expired)
	})
}

// handBack releases the held leases that leave says, in the order on which
// the single-user rule rests: seal the generator, forget, then send. Nothing is
// put back: a lease that is no longer needed runs out by itself.
func (k *Keeper) handBack(ctx context.Context, leave func(lease.Lease) bool) {
	var leaving []lease.Lease
	for _, l := range k.saved.Held {
		if leave(l) {
			leaving = append(leaving, l)
		}
	}
	if len(leaving) == 0 {
		return
	}
	k.saved.Held = slices.DeleteFunc(slices.Clone(k.saved.Held), leave)
	k.publish()
	if k.save() {
		k.releaseAll(ctx, leaving)
	}
}

// releaseAll sends the releases of leases that the generator is sealed against
// and the local state has forgotten. It returns those that the provider has not
// taken back, for certain: nothing was sent, or the provider said so itself.
func (k *Keeper) releaseAll(ctx context.Context, leaving []lease.Lease) (kept []lease.Lease) {
	for i, l := range leaving {
		// One whose reservation has ended has nothing to give back.
		if k.Clock.NowMS() >= l.ReservedUntil {
			continue
		}
		err := k.release(ctx, l, k.releaseMS())
		if stillOurs(err) {
			kept = append(kept, l)
		}
		// A provider that is gone or hangs is not waited for once per lease: the
		// next renewal is more important.
		if gone(err) || ctx.Err() != nil {
			return append(kept, leaving[i+1:]...)
		}
	}
	return kept
}

// stillOurs reports whether the error of a release proves that the lease was not
// given back: no byte of it was sent, or the provider refused it by its own word.
// Any other error leaves that open.
func stillOurs(err error) bool {
	var fenced *provider.FencedError
	var busy *provider.BusyError
	return errors.Is(err, provider.ErrNotSent) || errors.Is(err, provider.ErrTimestampSkew) || errors.Is(err, provider.ErrInvalid) ||
		errors.As(err, &fenced) || errors.As(err, &busy)
}

// gone reports whether the provider is gone or hangs, so that another call
// would cost time and bring nothing.
func gone(err error) bool {
	return errors.Is(err, provider.ErrNotSent) || errors.Is(err, context.DeadlineExceeded)
}

// releaseMS is the timestamp of a release: nothing was embedded later.
func (k *Keeper) releaseMS() int64 { return max(k.Clock.NowMS(), k.Generator.LastMS()) }

// release sends one release, once. Unless stillOurs says otherwise the lease is
// gone, whatever came of it.
func (k *Keeper) release(ctx context.Context, l lease.Lease, timestampMS int64) error {
	if k.Provider.Info().OwnClock {
		off := timestampMS - k.Clock.NowMS() - k.skewMS
		if off > provider.ReleaseWindow.Milliseconds() || -off > provider.ReleaseWindow.Milliseconds() {
			k.Log.Warn("lease not released: the clock is too far from the provider's; it runs out by itself", leaseFields(l)...)
			return fmt.Errorf("%w: %w", provider.ErrNotSent, provider.ErrTimestampSkew)
		}
	}
	err := k.timed(ctx, "release", func(ctx context.Context) error {
		return k.Provider.Release(ctx, provider.ReleaseRequest{
			Service: k.cfg.Service, ID: l.ID, BitSeq: l.BitSeq, TimestampMS: timestampMS,
			Signature: lease.Sign(l.Secret, l.ID, timestampMS),
		})
	})
	if err != nil {
		k.Log.Warn("lease not released; it runs out by itself", leaseFields(l, zap.Error(err))...)
		return err
	}
	k.Log.Info("worker id released", leaseFields(l)...)
	return nil
}

// verify asks the provider whether the leases are still ours, and drops at
// once those that are not. It reports whether the provider has answered.
func (k *Keeper) verify(ctx context.Context) bool {
	verifier, ok := k.Provider.(provider.Verifier)
	if !ok {
		return k.answeredJustNow()
	}
	now := k.Clock.NowMS()
	var ours []lease.Lease
	for _, l := range k.all() {
		if now < l.ReservedUntil {
			ours = append(ours, l)
		}
	}
	if len(ours) == 0 {
		return false
	}
	var lost []lease.Lease
	err := k.timed(ctx, "verify", func(ctx context.Context) (err error) {
		lost, err = provider.Verify(ctx, verifier, k.cfg.Service, ours)
		return err
	})
	if errors.Is(err, errors.ErrUnsupported) {
		return k.answeredJustNow() // it cannot tell, and has said so itself
	}
	if err != nil {
		k.Log.Warn("leases could not be verified", zap.Error(err))
		return false
	}
	if len(lost) > 0 {
		k.drop(lost)
	}
	return true
}

// answeredJustNow takes the place of a verify where there is none.
func (k *Keeper) answeredJustNow() bool {
	return k.answered && k.Clock.Elapsed()-k.lastAnswer <= aMoment
}

// drop forgets leases that belong to somebody else now.
func (k *Keeper) drop(lost []lease.Lease) {
	gone := map[lease.Key]bool{}
	for _, l := range lost {
		gone[l.Key()] = true
		k.Observer.Lost("taken_over")
		k.Log.Error("lease lost: the provider no longer knows it as ours", leaseFields(l)...)
	}
	k.saved.Held = slices.DeleteFunc(slices.Clone(k.saved.Held), func(l lease.Lease) bool { return gone[l.Key()] })
	if k.saved.Cached != nil && gone[k.saved.Cached.Key()] {
		k.saved.Cached = nil
	}
	k.acquired = false // a replacement need not wait for the rate limit
	k.publish()
	k.save()
}

// all is the held leases and the cached one.
func (k *Keeper) all() []lease.Lease {
	all := slices.Clone(k.saved.Held)
	if k.saved.Cached != nil {
		all = append(all, *k.saved.Cached)
	}
	return all
}

// has reports whether the grant is among the leases.
func has(leases []lease.Lease, l lease.Lease) bool {
	return slices.ContainsFunc(leases, func(other lease.Lease) bool { return other.Key() == l.Key() })
}

// Shutdown seals the generator against every lease, and gives them back where
// that costs the next start nothing. It is called after Run has returned.
//
// A stop is never worse than a kill -9, which keeps the leases: where the provider
// does not answer a verify, all of them stay in the local state for the next
// start, and so does each whose release was not sent or was refused. One whose
// release was sent and not answered is gone: the provider may have taken it back.
func (k *Keeper) Shutdown(ctx context.Context) {
	k.Generator.Update(nil, nil, nil)
	k.sealed = true
	if len(k.all()) == 0 {
		return
	}
	if !k.verify(ctx) {
		k.Log.Info("the provider has not answered just now: the leases are kept for the next start", zap.Int("leases", len(k.all())))
		return
	}
	for chunk := range slices.Chunk(k.all(), releaseChunk) {
		before := k.saved
		k.saved.Held = slices.DeleteFunc(slices.Clone(k.saved.Held), func(l lease.Lease) bool { return has(chunk, l) })
		if k.saved.Cached != nil && has(chunk, *k.saved.Cached) {
			k.saved.Cached = nil
		}
		if !k.save() {
			return
		}
		kept := k.releaseAll(ctx, chunk)
		if len(kept) > 0 {
			k.putBack(before, kept)
			return
		}
	}
}

// putBack has the next start find the leases of before that were kept, and those
// that were not to be released yet.
func (k *Keeper) putBack(before state.Saved, kept []lease.Lease) {
	stays := func(l lease.Lease) bool { return has(kept, l) || has(k.all(), l) }
	saved := k.saved
	saved.Held = slices.DeleteFunc(slices.Clone(before.Held), func(l lease.Lease) bool { return !stays(l) })
	if before.Cached != nil && stays(*before.Cached) {
		saved.Cached = before.Cached
	}
	k.saved = saved
	k.save()
	k.Log.Info("leases that the provider did not take back are kept for the next start", zap.Int("leases", len(k.all())))
}
