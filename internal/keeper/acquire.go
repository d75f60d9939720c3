package keeper

import (
	"cmp"
	"context"
	"encoding/binary"
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

// acquire asks for need IDs per millisecond. A request of which it is not known
// whether it was granted is repeated.
func (c *Core) acquire(need int64) Action {
	c.repeated = c.request != nil
	if c.request == nil {
		c.request = &provider.AcquireRequest{
			Service: c.cfg.Service, Meta: c.cfg.Meta, ThroughputPerMS: need, RequestID: c.newRequestID(),
		}
	}
	c.askedAt = c.at.Elapsed
	return Acquire{*c.request}
}

// newRequestID makes 128 random bits, under which a lost answer can be asked
// for again.
func (c *Core) newRequestID() string {
	b := binary.LittleEndian.AppendUint64(nil, c.rnd.Uint64())
	return hex.EncodeToString(binary.LittleEndian.AppendUint64(b, c.rnd.Uint64()))
}

// settled reports whether an error says for certain that nothing was granted,
// or that asking again under the same request ID is no use.
func settled(err error) bool {
	return errors.As(err, new(*provider.FullError)) || errors.As(err, new(*provider.FencedError)) ||
		errors.Is(err, provider.ErrConflict) || errors.Is(err, provider.ErrInvalid)
}

func (c *Core) onAcquired(e Acquired) Action {
	err := e.Err
	if err != nil && c.at.Halt {
		return c.next() // the call was cut short: that says nothing about the provider
	}
	if err == nil || settled(err) {
		c.request = nil
	}
	if c.repeated && errors.Is(err, provider.ErrConflict) {
		// The answer that was lost granted leases which have ended since. That is
		// no failure of the provider's, and a new request may well be granted.
		return c.next()
	}
	if err == nil && len(e.Leases) == 0 {
		err = fmt.Errorf("%w: the provider answered without one", lease.ErrMalformed)
	}
	if err != nil {
		c.failed(err)
		return c.next()
	}
	c.answer = e.Leases
	sound := slices.IndexFunc(e.Leases, func(l lease.Lease) bool { return l.Validate() == nil })
	if sound >= 0 && !c.repeated { // which may have been granted at the first try, at an unknown time
		return Confirm{e.Leases[sound].Created}
	}
	c.settleTimeline()
	return c.next()
}

// learnClock compares the time of a grant with the local clock, which the grant may just have set
// right. The grant was made between the request and the answer.
func (c *Core) learnClock(created int64) {
	c.skewMS = created - c.at.MS + (c.at.Elapsed-c.askedAt).Milliseconds()/2
	skew := time.Duration(c.skewMS) * time.Millisecond
	c.report.seen(func(o Observer) { o.Skew(skew) })
}

// judge takes the leases of an answer that can be used into use, and refuses the
// others.
func (c *Core) judge() {
	var good []lease.Lease
	var bad []refusal
	known := c.all()
	for _, l := range c.answer {
		if err := c.unfit(l); err != nil {
			bad = append(bad, refusal{l, err, !errors.Is(err, lease.ErrMalformed) && has(known, l)})
			continue
		}
		good = append(good, l)
	}
	c.answer = nil
	if len(good) > 0 {
		c.accept(good)
	} else {
		c.failed(bad[0].err)
	}
	for _, r := range bad {
		c.refuse(r)
	}
}

// unfit says why the lease cannot be used, nil if it can.
func (c *Core) unfit(l lease.Lease) error {
	if err := l.Validate(); err != nil {
		return err
	}
	if !covers(l.Created, l.Expired, c.at.MS) {
		return fmt.Errorf("%w: %v, and the clock shows %s", errNoCover, l, snowflake.FormatMS(c.at.MS))
	}
	if tl := l.Timeline(); tl != c.saved.Timeline {
		return fmt.Errorf("%w: lease has epoch %s and bit_ts %d, the service has epoch %s and bit_ts %d; "+
			"if the change is meant, stop the daemon and run kazahanad state accept-epoch", errMismatch,
			snowflake.FormatMS(tl.EpochMS), tl.BitTS, snowflake.FormatMS(c.saved.Timeline.EpochMS), c.saved.Timeline.BitTS)
	}
	return nil
}

// settleTimeline decides, with the first lease of a service that can be used, on
// which timeline the service is. Where that is another one it begins the move: both
// timelines are in the local state before an ID is made on the new one. After a crash
// the next life can then tell on which of the two its IDs are the larger ones.
func (c *Core) settleTimeline() {
	for _, l := range c.answer {
		err := c.unfit(l)
		switch {
		case err == nil:
			c.saved.Source = state.SourceLease
			return
		case errors.Is(err, errMismatch) && c.saved.Source != state.SourceLease:
			before := c.saved
			c.moving = &before
			c.saved.From, c.saved.Timeline, c.saved.Source = &before.Timeline, l.Timeline(), state.SourceLease
			c.saved.Held, c.saved.Cached = nil, nil // they are of another timeline
			c.todo = append(c.todo, toSave)
			return
		}
	}
}

// onRebased ends the move to another timeline.
func (c *Core) onRebased(ok bool) {
	if ok {
		c.saved.From = nil
	} else {
		c.saved = *c.moving
	}
	c.moving, c.todo = nil, append(c.todo, toSave)
}

// accept takes the leases into use. Expired ones are pruned now and only now,
// when there is something to live from (seed 000, section 5.9): the last of
// them is kept for fallback, the others go back. The new leases are in the live
// state before they are used.
func (c *Core) accept(good []lease.Lease) {
	var pruned []lease.Lease
	held := slices.Clone(good)
	for _, l := range c.saved.Held {
		switch {
		case has(good, l):
			// the answer to a repeated request
		case c.at.MS >= l.Expired:
			pruned = append(pruned, l)
		default:
			held = append(held, l)
		}
	}
	if len(pruned) > 0 {
		slices.SortFunc(pruned, func(a, b lease.Lease) int { return cmp.Compare(a.Expired, b.Expired) })
		last := pruned[len(pruned)-1]
		c.leaving = pruned[:len(pruned)-1]
		if c.saved.Cached != nil {
			c.leaving = append(c.leaving, *c.saved.Cached)
		}
		c.saved.Cached = &last
	}
	c.saved.Held, c.saved.Offered = held, nil
	c.cause, c.failures, c.notBefore = nil, 0, 0
	if c.missing() > 0 {
		c.notBefore = c.at.Elapsed + c.cfg.RetryInterval // the provider may have a reason to grant less
	}
	c.todo = append(c.todo, toSave, toPublish)
	for _, l := range good {
		c.report.line(zap.InfoLevel, "worker id allocated", c.leaseFields(l)...)
	}
	c.begin(good[0])
	c.report.seen(func(o Observer) { o.Acquired(ResultOK) })
}

type refusal struct {
	lease lease.Lease
	err   error
	known bool // it is held or cached already: not ours to give back as unused
}

// refuse reports a lease that this daemon cannot use, and queues it for release. A
// lease that is held already (an old answer that came again) is not released.
func (c *Core) refuse(r refusal) {
	l := r.lease
	if errors.Is(r.err, errMismatch) {
		offered := l.Timeline()
		if c.saved.Offered == nil || *c.saved.Offered != offered {
			c.saved.Offered = &offered
			if !slices.Contains(c.todo, toSave) {
				c.todo = append(c.todo, toSave)
			}
		}
		c.report.seen(Observer.Mismatch)
		c.report.line(zap.ErrorLevel, "epoch mismatch: lease refused", c.leaseFields(l, zap.Error(r.err))...)
	} else {
		c.report.line(zap.WarnLevel, "lease refused", c.leaseFields(l, zap.Error(r.err))...)
	}
	if !errors.Is(r.err, lease.ErrMalformed) && !r.known {
		c.refused = append(c.refused, l)
	}
}

// failed notes that an acquire brought nothing, and when to try again.
func (c *Core) failed(err error) {
	c.failures++
	wait := backoff(c.failures, c.cfg.RetryInterval, c.cfg.RetryMax, c.rnd.Float64())
	result := ResultUnavailable
	var full *provider.FullError
	var fenced *provider.FencedError
	var busy *provider.BusyError
	switch {
	case errors.As(err, &fenced):
		result = ResultFenced
	case errors.As(err, &busy):
		result = ResultRefused
		wait = busy.Wait(wait, c.rnd.Float64())
	case errors.As(err, &full), errors.Is(err, provider.ErrConflict), errors.Is(err, provider.ErrInvalid),
		errors.Is(err, errNoCover), errors.Is(err, lease.ErrMalformed):
		result = ResultRefused
	case errors.Is(err, errMismatch):
		result = ResultMismatch
	case errors.Is(err, context.DeadlineExceeded):
		result = ResultTimeout
	}
	c.notBefore = c.at.Elapsed + wait
	c.cause = err
	c.todo = append(c.todo, toPublish)
	c.report.seen(func(o Observer) { o.Acquired(result) })
	fields := []zap.Field{zap.Error(err), zap.Int("failures", c.failures), zap.Duration("retry_in", wait)}
	if kept := c.lastKept(); kept != nil && !c.anyUsable() {
		c.report.line(zap.ErrorLevel, "keep alive failed, circuit breaking", append(c.leaseFields(*kept), fields...)...)
		return
	}
	c.report.line(zap.ErrorLevel, "failed to allocate worker id", fields...)
}

// lastKept is the lease that could not be kept alive: the latest of this life, or one of the life
// before. nil: there was none.
func (c *Core) lastKept() *lease.Lease {
	if all := c.all(); c.kept == nil && len(all) > 0 {
		return &all[0]
	}
	return c.kept
}
