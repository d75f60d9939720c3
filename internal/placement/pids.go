package placement

import (
	"slices"
	"time"
)

// MaxPIDs is how many pids of actors of other hosts are remembered.
const MaxPIDs = 1024

// Why a pid is remembered no more, as the Reason of PIDDropped tells it. OtherAuthority and
// NoAuthority are others.
const (
	PIDIsOld     = "it was read too long ago"
	PIDMakesRoom = "others were read since"
	PIDHasEnded  = "its record has ended"
	OwnerHasLeft = "its host's membership has ended"
)

// pids are what records said of other hosts' actors, each until a time on Moment.Boot.
type pids struct {
	known map[Key]remotePID
	order []Key // in which their reads ended: almost that in which they get old
}

type remotePID struct {
	record Record
	until  time.Duration
}

// forget removes one, and returns it.
func (p *pids) forget(key Key) (was remotePID, ok bool) {
	if was, ok = p.known[key]; ok {
		delete(p.known, key)
		i := slices.Index(p.order, key)
		p.order = slices.Delete(p.order, i, i+1)
	}
	return was, ok
}

// PID completes a resolution with the memory of a remote actor. ok reports whether there is
// nothing more to learn: otherwise the record has to be read.
func (c *Core) PID(r Resolution, now Moment) (_ Resolution, ok bool) {
	if r.Locality != Remote {
		return r, true
	}
	c.dropOldPIDs(now)
	known, ok := c.pids.known[r.Key]
	if ok && now.Boot >= known.until { // its read ended after a later one's
		c.dropPID(r.Key, PIDIsOld, now)
		ok = false
	}
	if !ok || known.record.Owner.Authority != r.Authority {
		return r, false
	}
	return r.of(known.record), true
}

// RememberPID completes a remote resolution with the actor's record as it was read, and
// remembers it until a time. A record of another owner, of a membership that has ended, or
// without a pid says that the actor is not active at its authority.
func (c *Core) RememberPID(r Resolution, read Record, until time.Duration, now Moment) Resolution {
	active := r.Locality == Remote && read.PID != "" && read.Owner.Authority == r.Authority &&
		c.topology != nil && c.topology.Has(read.Owner) && c.topology.Authority(r.Key) == r.Authority
	if !active {
		c.dropPID(r.Key, PIDHasEnded, now)
		return r
	}
	if before, ok := c.pids.known[r.Key]; ok && before.until > until { // a read that began later
		return r.of(before.record)
	}
	if before, ok := c.pids.forget(r.Key); !ok || before.record.Token != read.Token || before.record.PID != read.PID {
		c.tell(Event{Kind: PIDCached, Key: r.Key, Authority: r.Authority, PID: read.PID, Version: read.Version, Token: read.Token, ObservedMS: now.UnixMS})
	}
	read.Snapshot = nil
	c.pids.known[r.Key], c.pids.order = remotePID{read, until}, append(c.pids.order, r.Key)
	if len(c.pids.order) > MaxPIDs {
		c.dropPID(c.pids.order[0], PIDMakesRoom, now)
	}
	return r.of(read)
}

// of is the resolution with the pid, the version and the token of a record.
func (r Resolution) of(record Record) Resolution {
	r.PID, r.Version, r.Token = record.PID, record.Version, record.Token
	return r
}

func (c *Core) dropPID(key Key, why string, now Moment) {
	if was, ok := c.pids.forget(key); ok {
		r := was.record
		c.tell(Event{Kind: PIDDropped, Key: key, Authority: r.Owner.Authority, PID: r.PID, Version: r.Version, Token: r.Token, Reason: why, ObservedMS: now.UnixMS})
	}
}

func (c *Core) dropOldPIDs(now Moment) {
	for len(c.pids.order) > 0 && now.Boot >= c.pids.known[c.pids.order[0]].until {
		c.dropPID(c.pids.order[0], PIDIsOld, now)
	}
}

// dropMovedPIDs drops those of actors that the new topology has elsewhere.
func (c *Core) dropMovedPIDs(now Moment) {
	for _, key := range slices.Clone(c.pids.order) {
		owner := c.pids.known[key].record.Owner
		switch authority := c.topology.Authority(key); {
		case authority == "":
			c.dropPID(key, NoAuthority, now)
		case authority != owner.Authority:
			c.dropPID(key, OtherAuthority, now)
		case !c.topology.Has(owner):
			c.dropPID(key, OwnerHasLeft, now)
		}
	}
}
