package keeper

import (
	"context"
	"errors"
	"slices"
	"time"

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
	replaced := c.remaining() >= c.cfg.MaxThroughput
	for _, l := range c.saved.Held {
		if c.at.MS >= l.Expired || replaced && c.aging(l) {
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
	switch {
	case c.at.Halt && c.stop == nil:
		return c.sleep(), false // until the stop, which sends the rest
	case c.at.Halt:
		c.keepLeaving()
		return nil, true
	}
	l := c.leaving[0]
	c.leaving = c.leaving[1:]
	if c.at.MS >= l.ReservedUntil {
		return nil, true // there is nothing left to give back
	}
	c.used = true
	return c.release(l, max(c.at.MS, c.at.LastMS)) // nothing was embedded later
}

// giveBackRefused gives back one of the refused leases. Where the provider hangs,
// the others run out by themselves.
//
// A refused lease was never published, so its own start bounds the times embedded
// under it, and is near the provider's time however wrong this host's clock is;
// but for an old lease that is told of only now, so is any later time.
func (c *Core) giveBackRefused() (action Action, again bool) {
	c.returned++
	c.used = false
	l := c.refused[0]
	c.refused = c.refused[1:]
	at := l.Created
	if theirs := c.at.MS + c.skewMS; theirs-at > provider.ReleaseWindow.Milliseconds()/2 {
		at = theirs
	}
	return c.release(l, at)
}

// release sends one release, once. The provider would refuse a timestamp that is too far
// from its clock, so that one is not sent. A stop sends it nevertheless: the clocks may have
// met since the last grant, and a refused lease is kept.
func (c *Core) release(l lease.Lease, timestampMS int64) (action Action, again bool) {
	c.back = l
	off := timestampMS - c.at.MS - c.skewMS
	if window := provider.ReleaseWindow.Milliseconds(); c.cfg.OwnClock && c.stop == nil && (off > window || -off > window) {
		c.report.line(zap.WarnLevel, "lease not released: the clock is too far from the provider's; it runs out by itself", c.leaseFields(l)...)
		c.notReleased(provider.ErrNotSent)
		return nil, true
	}
	return Release{provider.ReleaseRequest{
		Service: c.cfg.Service, ID: l.ID, BitSeq: l.BitSeq, TimestampMS: timestampMS,
		Signature: lease.Sign(l.Secret, l.ID, timestampMS),
	}}, false
}

func (c *Core) onReleased(err error) {
	c.heard(err)
	if err == nil {
		c.report.line(zap.InfoLevel, "worker id released", c.leaseFields(c.back)...)
		return
	}
	c.report.line(zap.WarnLevel, "lease not released; it runs out by itself", c.leaseFields(c.back, zap.Error(err))...)
	c.notReleased(err)
}

// notReleased draws the conclusions. While the keeper runs nothing is put back: a
// lease that is no longer needed runs out by itself.
func (c *Core) notReleased(err error) {
	if c.stop != nil && stillOurs(err) {
		c.stop.kept = append(c.stop.kept, c.back)
	}
	// A provider that is gone or hangs is not waited for once per lease: the next
	// renewal is more important.
	if !errors.Is(err, provider.ErrNotSent) && !errors.Is(err, context.DeadlineExceeded) {
		return
	}
	c.refused = nil
	switch halted := c.at.Halt && c.stop == nil && errors.Is(err, provider.ErrNotSent); {
	case halted && c.used: // the stop sends it
		c.leaving = slices.Insert(c.leaving, 0, c.back)
	case !halted:
		c.keepLeaving()
	}
}

// keepLeaving sends no further release. Those leases stay for the next start, if
// the daemon stops, or run out by themselves.
func (c *Core) keepLeaving() {
	if c.stop != nil {
		c.stop.kept = append(c.stop.kept, c.leaving...)
	}
	c.leaving = nil
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

// aMoment is how long ago the last answer of a provider that cannot verify may
// be for a stop to rely on it.
const aMoment = 10 * time.Second

// onVerified drops at once the leases that are no longer ours.
func (c *Core) onVerified(e Verified) {
	c.heard(e.Err)
	answered := e.Err == nil
	switch {
	case errors.Is(e.Err, errors.ErrUnsupported): // it cannot tell, so any answer has to do
		answered = c.answered && c.at.Elapsed-c.lastAnswer <= aMoment
	case e.Err != nil:
		c.report.line(zap.WarnLevel, "leases could not be verified", zap.Error(e.Err))
	case len(e.Lost) > 0:
		c.drop(e.Lost)
	}
	if c.stop != nil && !answered {
		c.keepAll()
	}
}

// drop forgets leases that belong to another client now.
func (c *Core) drop(lost []lease.Lease) {
	for _, l := range lost {
		c.report.seen(func(o Observer) { o.Lost("taken_over") })
		c.report.line(zap.ErrorLevel, "lease lost: the provider no longer knows it as ours", c.leaseFields(l)...)
	}
	c.acquired = false // a replacement need not wait for the rate limit
	c.forget(lost)
	c.loss = true
	c.todo = append(c.todo, toPublish, toSave)
}
