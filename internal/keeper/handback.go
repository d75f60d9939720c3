package keeper

import (
	"context"
	"errors"
	"slices"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
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
// the single-user rule rests: seal the generator, forget durably, then send.
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
	if !k.save() {
		return
	}
	k.releaseAll(ctx, leaving)
}

// releaseAll sends the releases of leases that the generator is sealed against
// and the durable state has forgotten.
func (k *Keeper) releaseAll(ctx context.Context, leaving []lease.Lease) {
	for _, l := range leaving {
		// One whose reservation has ended has nothing to give back.
		if k.Clock.NowMS() >= l.ReservedUntil {
			continue
		}
		// A provider that hangs is not waited for once per lease: the next
		// renewal is more important.
		if err := k.release(ctx, l, k.releaseMS()); errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return
		}
	}
}

// releaseMS is the timestamp of a release: nothing was embedded later.
func (k *Keeper) releaseMS() int64 { return max(k.Clock.NowMS(), k.Generator.LastMS()) }

// release sends one release. Whatever comes of it, the lease is gone: if the
// provider does not hear of it, the lease runs out by itself.
func (k *Keeper) release(ctx context.Context, l lease.Lease, timestampMS int64) error {
	if k.Provider.Info().OwnClock {
		off := timestampMS - k.Clock.NowMS() - k.skewMS
		if off > provider.ReleaseWindow.Milliseconds() || -off > provider.ReleaseWindow.Milliseconds() {
			k.Log.Warn("lease not released: the clock is too far from the provider's; it runs out by itself", leaseFields(l)...)
			return nil
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
// once those that are not.
func (k *Keeper) verify(ctx context.Context) {
	verifier, ok := k.Provider.(provider.Verifier)
	if !ok {
		return
	}
	now := k.Clock.NowMS()
	var ours []lease.Lease
	for _, l := range k.all() {
		if now < l.ReservedUntil {
			ours = append(ours, l)
		}
	}
	if len(ours) == 0 {
		return
	}
	var lost []lease.Lease
	err := k.timed(ctx, "verify", func(ctx context.Context) (err error) {
		lost, err = verifier.Verify(ctx, k.cfg.Service, ours)
		return err
	})
	if err != nil {
		k.Log.Warn("leases could not be verified", zap.Error(err))
		return
	}
	if len(lost) > 0 {
		k.drop(lost)
	}
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

// Shutdown seals the generator against every lease and gives them all back.
// It is called after Run has returned.
func (k *Keeper) Shutdown(ctx context.Context) {
	leaving := k.all()
	k.saved.Held, k.saved.Cached = nil, nil
	k.publish()
	if !k.save() {
		return
	}
	k.releaseAll(ctx, leaving)
}
