package runner

import (
	"context"
	"errors"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Leave hands the lease back after a run, as of the latest time that the program may have dated
// an ID with: this host's clock plus ahead. That requires that every process which could
// make IDs is known to have ended; otherwise the machine ID stays taken until the
// lease's end, or longer if the program's IDs may be dated after it.
func (h *LeaseHolding) Leave(ctx context.Context, timeout, ahead time.Duration, r Result) {
	lastMS := r.LastMS + ahead.Milliseconds()
	lost, is := errors.AsType[*LostError](r.Lost)
	switch {
	case is && lost.Gone:
		// Another process has the lease.
	case !r.Started:
		h.HandBack(ctx, timeout)
	case lastMS >= h.Lease.Expired:
		h.say("machine ID %d stays taken until its lease has run out, at %s", h.Lease.ID, snowflake.FormatMS(h.Lease.ReservedUntil))
	case !r.Exit.Alone:
		h.say("not every process that CMD started is known to have ended")
		h.handBack(ctx, timeout, h.Lease.Expired-1)
	case r.Unwatched:
		h.say("this process was stopped for a while, and does not know how this host's clock was set meanwhile")
		h.handBack(ctx, timeout, h.Lease.Expired-1)
	default:
		h.handBack(ctx, timeout, lastMS, h.Lease.Expired-1)
	}
}

// HandBack releases a lease under which no ID was made. It names the lease's
// beginning as the time, which is right even if this host's clock is wrong.
func (h *LeaseHolding) HandBack(ctx context.Context, timeout time.Duration) {
	h.handBack(ctx, timeout, h.Lease.Created, h.clock.Wall()/int64(time.Millisecond), h.Lease.Expired-1)
}

// handBack releases the lease, and says how. A lease runs out by itself if its release fails.
func (h *LeaseHolding) handBack(ctx context.Context, timeout time.Duration, times ...int64) {
	atMS, err := h.Release(ctx, timeout, times...)
	if err != nil {
		h.say("machine ID %d is not released, its lease runs out by itself: %v", h.Lease.ID, err)
		return
	}
	h.say("machine ID %d is released, and free from %s on", h.Lease.ID, snowflake.FormatMS(max(atMS+1, h.Lease.Created)))
}

// Release releases the lease as of the first of the times, in Unix ms, that the provider
// accepts, and returns that time. Providers accept the last millisecond of the
// lease even if it is far ahead. No call takes longer than the timeout, and none is cut
// off when ctx is done.
func (h *LeaseHolding) Release(ctx context.Context, timeout time.Duration, times ...int64) (atMS int64, err error) {
	l := h.Lease
	for _, atMS = range times {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		err = h.provider.Release(ctx, provider.ReleaseRequest{
			Service: h.service, ID: l.ID, BitSeq: l.BitSeq, TimestampMS: atMS, AtEnd: atMS == l.Expired-1,
			Signature: lease.Sign(l.Secret, l.ID, atMS),
		})
		cancel()
		if !errors.Is(err, provider.ErrTimestampSkew) {
			break
		}
	}
	return atMS, err
}
