package keeper

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// leaveReplaced lets go of the leases that are no longer needed: leases due for
// replacement once the whole throughput is there without them, and leases that have
// expired once any other is usable. So a host takes a second slot only for as long
// as a replacement takes, whenever the others do it. It reports whether there were
// any.
func (c *Core) leaveReplaced() bool {
	if !c.anyUsable() {
		return false // fallback lives from the expired ones
	}
	rest := c.throughput(func(l lease.Lease) bool { return c.usable(l) && !c.aging(l) })
	for _, l := range c.saved.Held {
		if c.at.MS >= l.Expired || rest >= c.cfg.MaxThroughput && c.aging(l) {
			c.leaving = append(c.leaving, l)
		}
	}
	if len(c.leaving) == 0 {
		return false
	}
	c.leave()
	return true
}

// leave begins to hand back the leaving leases, in the order on which the single-user
// rule rests: seal the generator, forget, then send. While the live state cannot be
// written nothing is sent.
func (c *Core) leave() {
	c.forget(c.leaving)
	c.todo = append(c.todo, toPublish, toSave)
}

// releaseNext sends the release of a lease that the generator is sealed against
// and the live state has forgotten.
func (c *Core) releaseNext() (action Action, again bool) {
	l := c.leaving[0]
	c.leaving = c.leaving[1:]
	switch {
	case c.at.Halt && c.stop != nil:
		c.putBack()
	case c.at.Halt:
		c.leaving = nil // they run out by themselves
	case c.at.MS < l.ReservedUntil: // else there is nothing left to give back
		return c.release(l, max(c.at.MS, c.at.LastMS)), false // nothing was embedded later
	}
	return nil, true
}

// giveBackRefused gives back one of the refused leases. It was never published, so its own
// start bounds the times embedded under it, and is near the provider's time however wrong
// this host's clock is.
func (c *Core) giveBackRefused() Action {
	l := c.refused[0]
	c.refused = c.refused[1:]
	return c.release(l, l.Created)
}

// release sends one release, once.
func (c *Core) release(l lease.Lease, timestampMS int64) Action {
	c.back = l
	return Release{provider.ReleaseRequest{
		Service: c.cfg.Service, ID: l.ID, BitSeq: l.BitSeq, TimestampMS: timestampMS,
		Signature: lease.Sign(l.Secret, l.ID, timestampMS),
	}}
}

// onReleased draws the conclusions. While the keeper runs nothing is put back: a lease that
// is no longer needed runs out by itself.
func (c *Core) onReleased(err error) {
	if err == nil {
		c.report.line(zap.InfoLevel, "worker id released", c.leaseFields(c.back)...)
		return
	}
	c.report.line(zap.WarnLevel, "lease not released; it runs out by itself", c.leaseFields(c.back, zap.Error(err))...)
	unheard := errors.Is(err, provider.ErrNotSent) || errors.Is(err, context.DeadlineExceeded)
	switch {
	case c.stop != nil && stillOurs(err):
		c.putBack()
	case c.stop != nil && unheard:
		c.keep()
	case unheard:
		// A provider that is gone or hangs is not waited for once per lease: the next
		// renewal is more important.
		c.refused, c.leaving = nil, nil
	}
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

// onVerified drops at once the leases that are no longer ours. A stop keeps all leases where the
// provider did not answer; where it cannot verify, the releases show whether it is there. Where it
// could before, something else answers in its place, and would answer the releases too.
func (c *Core) onVerified(e Verified) {
	switch {
	case errors.Is(e.Err, errors.ErrUnsupported):
		if c.stop != nil && c.verifies {
			c.keep()
		}
	case e.Err != nil:
		c.report.line(zap.WarnLevel, "leases could not be verified", zap.Error(e.Err))
		if c.stop != nil {
			c.keep()
		}
	default:
		c.verifies = true
		if len(e.Lost) > 0 {
			c.drop(e.Lost)
		}
	}
}

// drop forgets leases that belong to another client now.
func (c *Core) drop(lost []lease.Lease) {
	for _, l := range lost {
		c.report.seen(func(o Observer) { o.Lost("taken_over") })
		c.report.line(zap.ErrorLevel, "lease lost: the provider no longer knows it as ours", c.leaseFields(l)...)
	}
	c.forget(lost)
	c.loss = true
	c.todo = append(c.todo, toPublish, toSave)
}
