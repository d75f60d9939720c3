package keeper

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
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
}

// Moment has the readings of the clocks and the generator when an event arrives.
type Moment struct {
	MS      int64         // the believed time, Unix ms
	Elapsed time.Duration // by a clock that cannot be set
	LastMS  int64         // the largest Unix ms that any ID so far may embed
	Halt    bool          // the keeper is to end: no further call may begin
}

// Event is what Core.Handle takes: a Tick or a Stop, or the outcome of the action that it
// returned before.
type Event any

// The events. Each action but Sleep and Done is answered by one of them.
type (
	// Tick: a Sleep is over. Growth: the generator has used up its leases.
	Tick struct{ Growth bool }
	// Stop: the daemon ends. The last action after it is Done.
	Stop struct{}

	Published struct{}
	Rebased   struct{ OK bool } // whether the stream goes on increasing
	Saved     struct{ Err error }
	Confirmed struct{ ProviderMS int64 } // as in the Confirm
	Acquired  struct {
		Leases []lease.Lease
		Err    error
	}
	// Verified: Err is errors.ErrUnsupported where the provider cannot tell.
	Verified struct {
		Lost []lease.Lease
		Err  error
	}
	Released struct{ Err error }
)

// Action is the one thing to do next.
type Action any

// The actions.
type (
	// Publish replaces the leases that the generator makes IDs from. Cause says why there is
	// no lease. The zero value seals it.
	Publish struct {
		Held   []lease.Lease
		Cached *lease.Lease
		Cause  error
	}
	// Rebase moves the stream to another timeline.
	Rebase struct{ Timeline snowflake.Timeline }
	// Save writes the live state. AfterLoss: it lacks leases that belong to another client now.
	Save struct {
		Content   state.Saved
		AfterLoss bool
	}
	// Confirm tells the clock the present time of the provider.
	Confirm struct{ ProviderMS int64 }

	// Acquire, Verify and Release are calls of the provider.
	Acquire struct{ Request provider.AcquireRequest }
	Verify  struct{ Leases []lease.Lease }
	Release struct{ Request provider.ReleaseRequest }

	// Sleep: nothing is due for so long.
	Sleep struct{ For time.Duration }
	// Done: the stop is complete.
	Done struct{}
)

// Core decides what becomes of the leases of one service. It has no goroutine, no
// clock and no I/O: Handle takes an event and returns the next action, and the
// same events with the same randomness lead to the same actions.
type Core struct {
	cfg    Config
	rnd    *rand.Rand
	at     Moment // of the present event
	report Report

	saved    state.Saved              // held and cached leases, timeline: for the store to hold
	request  *provider.AcquireRequest // sent, and not known to be granted or refused
	repeated bool                     // it has been sent before
	cause    error                    // why the last acquire failed
	failures int                      // in a row
	skewMS   int64                    // provider's clock minus ours, at the last grant

	// Times on Moment.Elapsed.
	askedAt    time.Duration // when request was sent last
	notBefore  time.Duration // backoff of acquires
	nextVerify time.Duration
	nextSave   time.Duration // when to try again, if unsaved

	verifies bool // a verify has worked in this life: the provider does not lack it

	growth  bool // the generator asked for more
	unsaved bool // the store does not hold what saved has
	loss    bool // nor may it hold its leases: some of them are another client's

	kept *lease.Lease // the log tells of its keep alive; nil: none in this life

	// The present turn's work, done and still to do.
	verified bool          // it has verified
	todo     []duty        // in this order, before anything else
	leaving  []lease.Lease // sealed and forgotten once todo is done: to be released
	refused  []lease.Lease // to be given back
	back     lease.Lease   // its release is under way
	answer   []lease.Lease // granted, not judged yet
	moving   *state.Saved  // the leases from before the timeline moves

	stop *stopping // a stop has begun
}

// duty is work that comes before all else.
type duty int

const (
	toPublish duty = iota
	toSave
	toRebase
)

// NewCore returns a core with the store's leases, and the Publish to carry out before the first
// event. Leases that expired stay until the first success, for fallback.
func NewCore(cfg Config, saved state.Saved, rnd *rand.Rand, at Moment) (*Core, Publish) {
	c := &Core{cfg: cfg, rnd: rnd, at: at, saved: saved}
	c.nextVerify = at.Elapsed + cfg.VerifyEvery
	if len(c.all()) > 0 {
		c.nextVerify = at.Elapsed // only the provider knows whether they are still ours
	}
	for _, l := range saved.Held {
		c.report.line(zap.InfoLevel, "lease adopted from an earlier run", c.leaseFields(l, zap.Bool("valid", l.Allows(at.MS)))...)
	}
	return c, Publish{Held: saved.Held, Cached: saved.Cached}
}

// Report is a transition's report for the log and the metrics.
type Report struct {
	Lines []Line
	Seen  []func(Observer)
}

// Line is an entry of the log.
type Line struct {
	Level  zapcore.Level
	Text   string
	Fields []zap.Field
}

func (r *Report) line(level zapcore.Level, text string, fields ...zap.Field) {
	r.Lines = append(r.Lines, Line{level, text, fields})
}

func (r *Report) seen(f func(Observer)) { r.Seen = append(r.Seen, f) }

// Report returns the report of the last transition.
func (c *Core) Report() Report { return c.report }

// Handle takes an event and returns what to do next. The action's outcome is the
// next event; after a Sleep that is a Tick or a Stop, and after Done there is none.
func (c *Core) Handle(at Moment, e Event) Action {
	c.at, c.report = at, Report{}
	switch e := e.(type) {
	case Tick:
		c.growth = c.growth || e.Growth
		c.beginTurn()
	case Stop:
		return c.onStop()
	case Saved:
		c.onSaved(e.Err)
	case Rebased:
		c.onRebased(e.OK)
	case Acquired:
		return c.onAcquired(e)
	case Confirmed:
		c.learnClock(e.ProviderMS)
		c.settleTimeline()
	case Verified:
		c.onVerified(e)
	case Released:
		c.onReleased(e.Err)
	}
	return c.next()
}

// beginTurn begins each thing that is due now, once.
func (c *Core) beginTurn() {
	c.verified = false
	if i := slices.IndexFunc(c.saved.Held, c.usable); i >= 0 {
		c.begin(c.saved.Held[i])
	}
	if c.unsaved && c.at.Elapsed >= c.nextSave {
		c.todo = append(c.todo, toSave) // a lease that is not ours any more must not be adopted after a crash
	}
}

// next is the most urgent of what there is to do.
func (c *Core) next() Action {
	for again := true; again; {
		var action Action
		if len(c.todo) > 0 {
			action = c.nextDuty()
		} else {
			action, again = c.nextCall()
		}
		if action != nil {
			return action
		}
	}
	panic("keeper: neither an action nor something else to do")
}

// nextDuty is the action of the first duty, nil where there is nothing to it.
func (c *Core) nextDuty() Action {
	first := c.todo[0]
	c.todo = c.todo[1:]
	switch {
	case first == toSave:
		return Save{c.saved, c.loss}
	case first == toRebase:
		return Rebase{c.saved.Timeline}
	case c.stop == nil:
		return Publish{c.saved.Held, c.saved.Cached, c.cause}
	}
	return nil // the generator stays sealed
}

// nextCall is the next call of the provider, or a Sleep. again: there is something
// else to do first.
func (c *Core) nextCall() (action Action, again bool) {
	switch {
	case len(c.leaving) > 0:
		return c.releaseNext()
	case c.stop != nil:
		return c.nextOfStop()
	case c.answer != nil:
		c.judge()
		return nil, true
	case c.at.Halt:
		return c.sleep(), false
	case c.leaveReplaced():
		return nil, true
	case !c.verified && c.cfg.VerifyEvery > 0 && c.at.Elapsed >= c.nextVerify:
		c.verified, c.nextVerify = true, c.at.Elapsed+c.cfg.VerifyEvery
		if ours := c.reserved(); len(ours) > 0 {
			return Verify{ours}, false
		}
		return nil, true
	case len(c.refused) > 0: // before an acquire, the answer to which may name it again
		c.beginTurn() // a slow release must not put off the next verify
		return c.giveBackRefused(), false
	}
	if need := c.due(); need > 0 {
		return c.acquire(need), false
	}
	return c.sleep(), false
}

// sleep ends the turn.
func (c *Core) sleep() Action {
	c.growth = false
	return Sleep{c.nap()}
}

// begin reports the lease that the keep alive begins with, once, and remembers the latest.
func (c *Core) begin(l lease.Lease) {
	if c.kept == nil {
		c.report.line(zap.InfoLevel, "starting worker id keep alive", c.leaseFields(l)...)
	}
	c.kept = &l
}

// saveInterval is how often a write of the local state that failed is
// tried again.
const saveInterval = 10 * time.Second

// onSaved notes whether the store holds the wanted leases.
func (c *Core) onSaved(err error) {
	c.unsaved, c.nextSave = err != nil, c.at.Elapsed+saveInterval
	c.loss = c.loss && err != nil
	if err != nil {
		c.report.seen(Observer.StateFailed)
		if !errors.As(err, new(*state.FileError)) { // of which the state tells, once
			c.report.line(zap.ErrorLevel, "the live state cannot be saved; leases are used on, and none is released", zap.Error(err))
		}
		c.leaving = nil
		if c.stop != nil {
			c.stop.over = true
		}
	}
	switch {
	case c.moving != nil && err == nil:
		c.todo = append(c.todo, toRebase)
	case c.moving != nil:
		c.onRebased(false)
	}
}

func (c *Core) usable(l lease.Lease) bool { return l.Allows(c.at.MS) }

func (c *Core) anyUsable() bool { return slices.ContainsFunc(c.saved.Held, c.usable) }

// aging reports whether the lease is due for replacement.
func (c *Core) aging(l lease.Lease) bool { return c.at.MS >= renewalMS(l.Created, l.Expired) }

// all is the held leases and the cached one.
func (c *Core) all() []lease.Lease {
	all := slices.Clone(c.saved.Held)
	if c.saved.Cached != nil {
		all = append(all, *c.saved.Cached)
	}
	return all
}

// reserved returns the leases with a running reservation.
func (c *Core) reserved() []lease.Lease {
	return slices.DeleteFunc(c.all(), func(l lease.Lease) bool { return c.at.MS >= l.ReservedUntil })
}

// forget removes leases from the ones for the store to hold.
func (c *Core) forget(leases []lease.Lease) {
	c.saved.Held = slices.DeleteFunc(slices.Clone(c.saved.Held), func(l lease.Lease) bool { return has(leases, l) })
	if c.saved.Cached != nil && has(leases, *c.saved.Cached) {
		c.saved.Cached = nil
	}
}

// has reports whether the grant is among the leases.
func has(leases []lease.Lease, l lease.Lease) bool {
	return slices.ContainsFunc(leases, func(other lease.Lease) bool { return other.Key() == l.Key() })
}

func (c *Core) leaseFields(l lease.Lease, more ...zap.Field) []zap.Field {
	return append([]zap.Field{
		zap.Int64("worker_id", l.ID), zap.String("key", c.cfg.Service+":"+strconv.FormatInt(l.ID, 10)), zap.Stringer("layout", l.Layout()),
		zap.String("created", snowflake.FormatMS(l.Created)), zap.String("expired", snowflake.FormatMS(l.Expired)),
	}, more...)
}

// Status is the state of a keeper, as of its last event.
type Status struct {
	Held     []lease.Lease
	Cached   *lease.Lease
	Timeline snowflake.Timeline
	Offered  *snowflake.Timeline // the timeline of a lease that was refused
	Failures int                 // failed acquires in a row
	Cause    error               // of the last one
	RetryIn  time.Duration       // until the next try; 0 = none is planned or it is due
	SkewMS   int64               // provider's clock minus ours at the last grant
}

// Status returns what there is. The slices are not to be changed.
func (c *Core) Status() Status {
	return Status{
		Held: c.saved.Held, Cached: c.saved.Cached, Timeline: c.saved.Timeline, Offered: c.saved.Offered,
		Failures: c.failures, Cause: c.cause, RetryIn: max(c.notBefore-c.at.Elapsed, 0), SkewMS: c.skewMS,
	}
}
