package driver

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/placement"
)

const (
	tickInterval = 500 * time.Millisecond
	maxCommands  = 64   // calls of stores under way at once; others wait
	maxBegun     = 1024 // activations under way at once; others wait
	// renewPart: a membership is renewed after this part of its term.
	renewPart = 3
	// marginPart of its rest is not relied on: clocks run at different speeds, and processes have
	// to be told.
	marginPart = 10
	// idlePart of IdleTTL is between looks for idle actors.
	idlePart = 10
	// stopTimeout bounds how long the end waits for processes and stores.
	stopTimeout = 8 * time.Second
	releaseTime = time.Second // of it, to give the membership back
	// announcePause is between two renewals that announce other kinds: a process that
	// comes and goes does not keep the store busy.
	announcePause = 100 * time.Millisecond
)

var errStopping = errors.New("this host stops")

// Core decides what the driver of one host does: which commands of placement.Core
// are carried out when, when the membership is asked for and renewed, and when the
// members are looked at. It has no goroutine, no clock and no I/O: events come in with
// the time, and actions go out as Effects. It is not safe for concurrent use.
type Core struct {
	*placement.Core
	terms Terms
	fx    Effects // since the last call

	queue   []placement.Command // for stores, of keys that have begun
	fresh   []placement.Command // that begin a key
	begun   map[placement.Key]struct{}
	running int // calls of stores for commands

	request lock.Request // the next one about the membership
	asking  bool         // it is under way
	sent    time.Duration
	kinds   string        // that this host serves, as its membership announces them
	held    lock.Lease    // the membership, to be given back
	until   time.Duration // when that ends by this host's reckoning

	looking bool
	from    time.Duration // when the present look began
	seen    time.Duration // when the members were seen last

	tickAt, askAt, lookAt, idleAt time.Duration // when each is due

	started, leaving, over bool
	stopBy                 time.Duration // not 0: a stop has begun
}

// Terms are the settings of a core.
type Terms struct {
	Authority string // this host's name among the members; "" for a host that only resolves
	TTL       time.Duration
	Interval  time.Duration
	IdleTTL   time.Duration // 0: never
	Strategy  placement.Strategy
	NewID     func() string // for leases and requests
}

// Effects are what follows from an event. Each Begin, Ask and Look is answered by
// one call of Finished, Answered and Looked.
type Effects struct {
	Begin  []placement.Command // to carry out
	Ask    *lock.Request       // about the membership: Op, LeaseID and RequestID
	Look   bool                // at the members
	Done   []placement.Done    // activations that callers may wait for
	Events []placement.Event
	Over   bool // the stop is complete
}

// NewCore returns a core that has not started.
func NewCore(t Terms) *Core {
	return &Core{Core: placement.NewCore(t.Authority, t.Strategy), terms: t, begun: map[placement.Key]struct{}{}}
}

// Start begins the life of the driver.
func (c *Core) Start(now placement.Moment) Effects {
	c.Core.Start()
	c.started = true
	c.request = c.newMembership()
	c.tickAt, c.askAt, c.lookAt, c.idleAt, c.seen = now.Boot, now.Boot, now.Boot, now.Boot, now.Boot
	return c.Tick(now)
}

// Stop passivates the actors and gives the membership back, as far as both take no longer than
// stopTimeout. Effects.Over tells the end.
func (c *Core) Stop(now placement.Moment) Effects {
	c.stopBy = now.Boot + stopTimeout - releaseTime
	c.follow(c.Core.Stop(now))
	// A command that has not begun is of no use any more, and the store may be slow.
	for _, command := range c.fresh {
		c.follow(c.HandleResult(placement.Result{ID: command.ID, Err: errStopping}, now))
	}
	c.fresh = nil
	return c.effects(now)
}

// Stopping reports whether a stop has begun.
func (c *Core) Stopping() bool { return c.stopBy != 0 }

// Due is when Tick is to be called next.
func (c *Core) Due() time.Duration {
	due := c.tickAt
	if !c.looking {
		due = min(due, c.lookAt)
	}
	if c.mayAsk() {
		due = min(due, c.askAt)
	}
	if c.Stopping() && !c.leaving {
		due = min(due, c.stopBy)
	}
	return due
}

// Tick takes the due actions.
func (c *Core) Tick(now placement.Moment) Effects {
	if now.Boot >= c.tickAt {
		c.tickAt = now.Boot + tickInterval
		c.follow(c.Core.Tick(now))
	}
	if ttl := c.terms.IdleTTL; ttl > 0 && now.Boot >= c.idleAt {
		c.idleAt = now.Boot + ttl/idlePart // all activations are looked at, so not too often
		c.follow(c.Core.PassivateIdle(ttl, now))
	}
	if !c.looking && now.Boot >= c.lookAt {
		c.looking, c.from, c.lookAt, c.fx.Look = true, now.Boot, now.Boot+c.terms.Interval, true
	}
	if c.mayAsk() && now.Boot >= c.askAt {
		c.asking, c.sent = true, now.Boot
		c.request.Note = c.kinds
		request := c.request
		c.fx.Ask = &request
	}
	return c.effects(now)
}

// SetKinds says for which kinds there is a process on this host. The next renewal of the
// membership announces them, and is due at once.
func (c *Core) SetKinds(kinds []string, now placement.Moment) Effects {
	kinds = slices.Sorted(slices.Values(kinds))
	c.follow(c.Core.SetKinds(kinds, now))
	if c.kinds = strings.Join(kinds, kindsSeparator); c.kinds != c.request.Note {
		c.askAt = min(c.askAt, c.announceAt(now))
	}
	if !c.started {
		return Effects{}
	}
	return c.Tick(now)
}

// announceAt is when the present kinds may be announced.
func (c *Core) announceAt(now placement.Moment) time.Duration {
	return max(now.Boot, c.sent+announcePause)
}

// Changed says that members have come or gone.
func (c *Core) Changed(now placement.Moment) Effects {
	c.lookAt = now.Boot
	return c.Tick(now)
}

// Looked has the members, or why they are not known. A look of a term ago says nothing of the
// present members.
func (c *Core) Looked(members []placement.Host, err error, now placement.Moment) Effects {
	c.looking = false
	switch {
	case err == nil:
		c.seen = c.from
	case now.Boot-c.seen < c.terms.TTL:
		return c.Tick(now)
	default:
		members = nil
	}
	c.follow(c.Core.UpdateTopology(members, now))
	return c.Tick(now)
}

func (c *Core) mayAsk() bool { return c.terms.Authority != "" && !c.asking && !c.leaving }

// newMembership asks with one ID for the request and its lease, and its renewals have none:
// the time in an ID is this host's wall clock, which is to decide nothing.
func (c *Core) newMembership() lock.Request {
	id := c.terms.NewID()
	return lock.Request{Op: lock.Acquire, LeaseID: id, RequestID: id, Announce: true}
}

// Answered has what became of a request about the membership.
func (c *Core) Answered(op lock.Op, l lock.Lease, err error, now placement.Moment) Effects {
	if c.leaving { // a renewal may have been under way when that began
		c.over = c.over || op == lock.Release
		return c.effects(now)
	}
	c.asking = false
	pause := c.terms.TTL / renewPart
	var other *lock.HeldError
	switch {
	case err == nil:
		if l.Token != c.held.Token || l.Note != c.held.Note {
			c.lookAt = now.Boot
		}
		left := time.Duration(l.RemainingMS) * time.Millisecond
		c.held, c.until = l, c.sent+left-left/marginPart
		c.follow(c.SetMembership(l.Token, c.until, now))
		if c.request.Note != c.kinds { // they have changed meanwhile
			pause = c.announceAt(now) - now.Boot
		} else if l.Note != c.kinds { // it was granted to an earlier request
			pause = retryMost
		}
		c.request = lock.Request{Op: lock.Renew, LeaseID: l.LeaseID, Announce: true, Note: c.request.Note}
	case errors.As(err, &other):
		// Of this host's life before, as a rule: it lasts until its end.
		pause = min(pause, time.Duration(other.RemainingMS)*time.Millisecond+retryFirst)
		c.request = c.newMembership()
	case lock.IsAnswer(err):
		c.held = lock.Lease{}
		c.follow(c.SetMembership(0, 0, now))
		c.request, pause = c.newMembership(), retryMost
	default:
		// The same request again: its outcome is not known. A request that is too old to be of
		// use is given up; Tick ends the membership by the clock.
		pause = retryMost
		if now.Boot >= c.until && c.held.Token != 0 {
			c.held, c.request = lock.Lease{}, c.newMembership()
		}
	}
	c.askAt = now.Boot + pause
	return c.Tick(now)
}

// leave gives the membership back, so that others need not wait for its end. They have to, where
// a process may still run actors that it has not let go of.
func (c *Core) leave(now placement.Moment) {
	c.leaving = true
	if c.held.Token == 0 || !c.Idle() {
		c.over = true
		return
	}
	c.follow(c.SetMembership(0, 0, now))
	c.fx.Ask = &lock.Request{Op: lock.Release, LeaseID: c.held.LeaseID, RequestID: c.terms.NewID()}
}

// Resolve is placement.Core.Resolve, for as many keys as may wait for their turn.
func (c *Core) Resolve(key placement.Key, now placement.Moment) (placement.Resolution, Effects, error) {
	if len(c.fresh) >= MaxWaiting {
		if r, ok := c.Known(key, now); ok {
			return r, c.effects(now), nil
		}
		return placement.Resolution{}, Effects{}, &OverloadedError{Limit: MaxWaiting}
	}
	r, o, err := c.Core.Resolve(key, now)
	c.follow(o)
	return r, c.effects(now), err
}

// Evict is placement.Core.Evict.
func (c *Core) Evict(key placement.Key, token int64, now placement.Moment) (_ Effects, there bool) {
	o, there := c.Core.Evict(key, token, now)
	c.follow(o)
	return c.effects(now), there
}

// Ended is placement.Core.Ended.
func (c *Core) Ended(key placement.Key, token int64, now placement.Moment) Effects {
	c.follow(c.Core.Ended(key, token, now))
	return c.effects(now)
}

// Finished has what became of a command.
func (c *Core) Finished(command placement.Command, r placement.Result, now placement.Moment) Effects {
	if !forProcess(command.Op) {
		c.running--
	}
	r.ID = command.ID
	c.follow(c.HandleResult(r, now))
	return c.effects(now)
}

// forProcess reports whether a process carries the command out.
func forProcess(op placement.Op) bool { return op == placement.Ensure || op == placement.Passivate }

// follow takes what placement wants.
func (c *Core) follow(o placement.Outcome) {
	for _, done := range o.Done {
		delete(c.begun, done.Key)
	}
	c.fx.Done = append(c.fx.Done, o.Done...)
	if !c.started || c.over { // there is nothing to do yet, or it is too late
		return
	}
	for _, command := range o.Commands {
		switch {
		case forProcess(command.Op):
			c.fx.Begin = append(c.fx.Begin, command)
		case command.Op == placement.TryAcquire:
			c.fresh = append(c.fresh, command)
		default:
			c.queue = append(c.queue, command)
		}
	}
}

// effects is what follows from the event: the calls of stores that there is room
// for, and the end of the stop.
func (c *Core) effects(now placement.Moment) Effects {
	if c.Stopping() && !c.leaving && (c.Idle() || now.Boot >= c.stopBy) {
		c.leave(now)
	}
	for ; c.running < maxCommands; c.running++ {
		command, ok := c.nextCommand()
		if !ok {
			break
		}
		c.fx.Begin = append(c.fx.Begin, command)
	}
	fx := c.fx
	c.fx = Effects{}
	fx.Events, fx.Over = c.DrainEvents(), c.over
	return fx
}

// nextCommand is the command to be carried out now. What goes on with a key comes
// before what begins one, and not too many are begun: else of a crowd of keys none
// would be done before the locks of all have ended.
func (c *Core) nextCommand() (command placement.Command, ok bool) {
	switch {
	case len(c.queue) > 0:
		command, c.queue = c.queue[0], c.queue[1:]
	case len(c.fresh) > 0 && len(c.begun) < maxBegun:
		command, c.fresh = c.fresh[0], c.fresh[1:]
		c.begun[command.Key] = struct{}{}
	default:
		c.queue = nil // lets go of its memory
		return command, false
	}
	return command, true
}
