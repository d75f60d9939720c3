package placement

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// step is the work under way for a key: one command, or none.
type step string

const (
	acquiring   step = "acquiring"
	loading     step = "loading"
	checking    step = "checking the owner"
	reserving   step = "reserving"
	ensuring    step = "activating"
	recording   step = "recording"
	releasing   step = "releasing"
	resting     step = "resting" // activated, no command
	passivating step = "passivating"
	removing    step = "removing"
	retrying    step = "waiting to remove" // no command until the next Tick
)

// entry is a key that this host is, or was, the authority of.
//
//	acquiring -> loading -> [checking] -> reserving -> ensuring -> recording -> releasing -> resting
//	resting -> passivating -> removing -> gone
//
// The record names this host from reserving until removing: no other host activates the key
// meanwhile, even if a step fails or takes long.
type entry struct {
	key       Key
	serial    uint64
	step      step
	request   RequestID // under way
	unwanted  bool      // to be passivated, as soon as nothing is under way
	activated bool
	ended     bool   // while the process was asked: its answer means nothing
	reserved  bool   // the store's record may name this host
	lease     Lease  // held if ID is not empty
	record    Record // the present or coming record in the store
	other     Record // checking: the record in the way
	failure   error  // why the activation under way has failed
	denied    bool   // by another host, and that was told
	why       string // it is to be passivated
	keep      bool   // the stored snapshot stays when the record is removed
	asked     bool   // a caller waits for the end of the retreat
	used      time.Duration
}

// resolved reports whether the activation is made, and the store knows of it.
func (e *entry) resolved() bool {
	return e.activated && !e.unwanted && (e.step == releasing || e.step == resting)
}

func (e *entry) resolution(self string, now Moment) Resolution {
	return Resolution{
		Key: e.key, Authority: self, Locality: Local, PID: e.record.PID, Version: e.record.Version, Token: e.record.Token, ObservedMS: now.UnixMS,
	}
}

func (c *Core) begin(key Key, now Moment) {
	c.serial++
	e := &entry{key: key, serial: c.serial, used: now.Boot, keep: true}
	c.entries[key] = e
	c.send(e, acquiring, Command{Op: TryAcquire})
}

// send has the driver carry out a command for the key.
func (c *Core) send(e *entry, s step, command Command) {
	c.last++
	command.ID, command.Key = c.last, e.key
	e.step, e.request = s, c.last
	c.pending[c.last] = e
	c.commands = append(c.commands, command)
}

// HandleResult tells what became of a command. A result that no command waits for
// is ignored, and counted.
func (c *Core) HandleResult(r Result, now Moment) Outcome {
	e, ok := c.pending[r.ID]
	if !ok {
		c.ignored++
		return c.outcome()
	}
	delete(c.pending, r.ID)
	switch e.step {
	case acquiring:
		c.acquired(e, r, now)
	case loading:
		c.loaded(e, r, now)
	case checking:
		c.checked(e, r, now)
	case reserving:
		c.stored(e, r, now)
	case ensuring:
		c.ensured(e, r, now)
	case recording:
		c.recorded(e, r, now)
	case releasing:
		c.released(e, now)
	case passivating:
		if len(r.Snapshot) > MaxSnapshot {
			r.Err = fmt.Errorf("the process leaves %d bytes behind, and at most %d are kept", len(r.Snapshot), MaxSnapshot)
		}
		if r.Err == nil && r.Snapshot != nil {
			e.record.Snapshot, e.keep = r.Snapshot, false
		}
		c.passivated(e, r.Err, now)
	case removing:
		c.removed(e, r, now)
	}
	return c.outcome()
}

func (c *Core) acquired(e *entry, r Result, now Moment) {
	if r.Err != nil {
		c.denied(e, r.Err, r.Denied, now)
		return
	}
	e.lease = r.Lease
	if c.goesOn(e, now) {
		c.send(e, loading, Command{Op: Load})
	}
}

func (c *Core) loaded(e *entry, r Result, now Moment) {
	switch {
	case r.Err != nil:
		c.fail(e, r.Err, now)
	case !c.goesOn(e, now):
	case r.Found && r.Record.Token >= e.lease.Token:
		c.fail(e, fmt.Errorf("the lock's fencing token %d is not above that of the record, %d: the store of locks has lost its data", e.lease.Token, r.Record.Token), now)
	case !r.Found || r.Record.Owner.Authority == "":
		c.reserve(e, r.Record, now)
	case r.Record.Owner.Authority == c.self && r.Record.Owner.Token <= c.token:
		// This host began an activation and could not clean up, in this membership or an earlier
		// one, which has ended because there is this one.
		c.reserve(e, r.Record, now)
	default:
		e.other = r.Record
		c.send(e, checking, Command{Op: CheckOwner, Record: r.Record})
	}
}

func (c *Core) checked(e *entry, r Result, now Moment) {
	switch {
	case r.Err != nil:
		c.fail(e, r.Err, now)
	case !c.goesOn(e, now):
	case !r.Ended:
		c.denied(e, fmt.Errorf("%w: %s", ErrOwned, e.other.Owner.Authority), true, now)
	default:
		c.reserve(e, e.other, now)
	}
}

// reserve writes this host's name into the record, before the process is asked.
func (c *Core) reserve(e *entry, before Record, now Moment) {
	e.record = Record{Owner: Member{c.self, c.token}, Version: before.Version + 1, Token: e.lease.Token, Snapshot: before.Snapshot, ObservedMS: now.UnixMS}
	e.other, e.reserved = Record{}, true
	c.send(e, reserving, Command{Op: Store, Record: e.record})
}

func (c *Core) stored(e *entry, r Result, now Moment) {
	switch {
	case r.Err != nil:
		e.reserved = !IsRefusal(r.Err)
		c.fail(e, r.Err, now)
	case c.goesOn(e, now):
		c.send(e, ensuring, Command{Op: Ensure, Record: e.record, Until: c.until})
	}
}

func (c *Core) ensured(e *entry, r Result, now Moment) {
	switch {
	case r.Err == nil && e.ended:
		r.Err = errors.New(ProcessGone)
	case r.Err == nil && (len(r.PID) > MaxPID || !utf8.ValidString(r.PID)):
		r.Err, r.Unknown = fmt.Errorf("the process calls it by what is not up to %d bytes of UTF-8", MaxPID), true
	}
	switch {
	case r.Err != nil:
		// An actor that may have been activated has to be told that it must not be.
		e.activated = r.Unknown
		if c.goesOn(e, now) {
			c.fail(e, r.Err, now)
		}
	default:
		e.activated = true
		e.record.PID = r.PID
		if c.goesOn(e, now) {
			c.send(e, recording, Command{Op: Store, Record: e.record})
		}
	}
}

func (c *Core) recorded(e *entry, r Result, now Moment) {
	switch {
	case r.Err != nil:
		c.fail(e, r.Err, now)
	case c.goesOn(e, now):
		c.tell(Event{Kind: Activated, Key: e.key, Authority: c.self, PID: e.record.PID, Version: e.record.Version, Token: e.record.Token, ObservedMS: now.UnixMS, Took: now.Boot - e.used})
		e.used, e.record.Snapshot = now.Boot, nil // it is in the store
		c.done = append(c.done, Done{Key: e.key, Resolution: e.resolution(c.self, now)})
		c.release(e)
	}
}

// denied ends an activation that may not go on. byOther: another host is at work on the
// key, or has it. In a handover that is the rule, and no failure.
func (c *Core) denied(e *entry, why error, byOther bool, now Moment) {
	c.tell(Event{Kind: LockDenied, Key: e.key, Authority: c.self, Reason: why.Error(), Err: why, ObservedMS: now.UnixMS})
	e.denied = byOther
	c.fail(e, why, now)
}

// goesOn reports whether the activation may proceed, and ends it where not: the
// key or the membership was lost while the command was under way.
func (c *Core) goesOn(e *entry, now Moment) bool {
	if !e.unwanted && c.isMember(now) {
		return true
	}
	c.fail(e, ErrLost, now)
	return false
}

// fail ends an activation that is under way, and takes back its changes.
func (c *Core) fail(e *entry, err error, now Moment) {
	e.failure, e.unwanted, e.why = err, true, err.Error()
	c.retreat(e, now)
}

// lose has the key passivated.
func (c *Core) lose(e *entry, why string, now Moment) {
	if !e.unwanted {
		e.unwanted, e.why = true, why
	}
	if e.step == resting {
		c.retreat(e, now)
	}
}

// retreat does the next step on the way out. Nothing is under way.
func (c *Core) retreat(e *entry, now Moment) {
	switch {
	case e.activated:
		c.send(e, passivating, Command{Op: Passivate, Record: e.record})
	case e.reserved:
		c.remove(e)
	case e.lease.ID != "":
		c.release(e)
	default:
		c.gone(e, now)
	}
}

func (c *Core) passivated(e *entry, err error, now Moment) {
	why := e.why
	if err != nil {
		why = err.Error()
	}
	if e.activated { // not when Ended came first
		e.activated = false
		c.tellPassivated(e, why, err, now)
	}
	c.retreat(e, now)
}

func (c *Core) tellPassivated(e *entry, why string, err error, now Moment) {
	c.tell(Event{Kind: Passivated, Key: e.key, Authority: c.self, PID: e.record.PID, Version: e.record.Version, Token: e.record.Token, Reason: why, Err: err, ObservedMS: now.UnixMS})
}

func (c *Core) remove(e *entry) {
	c.send(e, removing, Command{Op: Remove, Record: e.record, Keep: e.keep})
}

func (c *Core) removed(e *entry, r Result, now Moment) {
	if r.Err != nil && !IsRefusal(r.Err) {
		// As long as the record names this host, no other host can have the key.
		e.step = retrying
		c.retries = append(c.retries, e)
		return
	}
	e.reserved = false
	c.retry(nextRetries)
	c.retreat(e, now)
}

func (c *Core) release(e *entry) {
	lease := e.lease
	e.lease = Lease{}
	c.send(e, releasing, Command{Op: Release, Lease: lease})
}

// released is after the activation, or at the end of the retreat.
func (c *Core) released(e *entry, now Moment) {
	if e.unwanted {
		c.retreat(e, now)
		return
	}
	e.step = resting
}

// gone forgets the key.
func (c *Core) gone(e *entry, now Moment) {
	delete(c.entries, e.key)
	err := e.failure
	if err == nil && e.asked {
		err = ErrLost
	}
	if err == nil {
		return
	}
	if !e.denied && !errors.Is(err, ErrLost) {
		c.tell(Event{Kind: ActivationFailed, Key: e.key, Authority: c.self, Reason: err.Error(), Err: err, ObservedMS: now.UnixMS})
	}
	c.done = append(c.done, Done{Key: e.key, Err: err})
}
