package trace

import (
	"cmp"
	"slices"
	"time"
)

// Placement is the trace of one actor. docs/model/Placement.tla must allow each of its steps
// after the steps before it.
//
// A host is one life of a daemon. The specification's tokens are versions here: the product
// counts both, and the tokens come from a lock.
type Placement struct {
	Steps   []PlaceStep
	Promise time.Duration // how long a process may rely on an answer to Check
	// Patience is how long a host waits for a silent process.
	Patience time.Duration
}

// PlaceStep is a step.
type PlaceStep struct {
	Do        string        // the action in Placement.tla
	At        time.Duration // by the clock of the hosts
	StoreMS   int64         // by the store's, Unix ms
	Host      string        // one life of a daemon, with its process
	Authority string        // the member
	Life      int64         // the membership's token
	TermMS    int64         // Grant
	Sent      time.Duration // Joined: when the host asked
	// Version and Token are those of an activation.
	Version, Token int64
	Until          time.Duration // Check: the process relies on the actor until then
	Stored         bool          // Remove: the store has it
}

// placeMember is member of Placement.tla.
type placeMember struct{ life, endMS int64 }

// placeRecord is record of Placement.tla.
type placeRecord struct {
	owner                string // an authority; "": removed
	life, version, token int64
}

// placeHost is host, write and proc of Placement.tla.
type placeHost struct {
	down    bool
	life    int64
	until   time.Duration
	write   placeRecord
	owns    int64 // a token, like all of these
	runs    int64
	last    time.Duration
	ends    bool
	proc    int64
	relies  time.Duration
	written bool
}

// placement is the state of Placement.tla.
type placement struct {
	*Placement
	now      time.Duration
	member   map[string]placeMember
	record   placeRecord
	hosts    map[string]*placeHost
	greatest int64
	breaks   func(format string, args ...any)
}

// placeActions are the actions of Placement.tla.
var placeActions = map[string]func(*placement, *placeHost, PlaceStep){
	"Tick": (*placement).Tick, "Grant": (*placement).Grant, "Joined": (*placement).Joined, "Leave": (*placement).Leave,
	"Write": (*placement).Write, "Written": (*placement).Written, "Outrun": (*placement).Outrun,
	"Activate": (*placement).Activate, "Check": (*placement).Check, "Passivate": (*placement).Passivate,
	"Stop": (*placement).Stop, "Remove": (*placement).Remove, "Crash": (*placement).Crash, "Die": (*placement).Die,
}

// Check follows the trace. Grants counts the activations, and Emits the promises to processes.
func (t Placement) Check() (r Result) {
	p := &placement{Placement: &t, member: map[string]placeMember{}, hosts: map[string]*placeHost{}, breaks: r.breaks}
	steps := slices.Clone(t.Steps)
	slices.SortStableFunc(steps, func(a, b PlaceStep) int { return cmp.Compare(a.At, b.At) })
	for _, s := range steps {
		act, known := placeActions[s.Do]
		if !known {
			p.breaks("%s is no action of Placement.tla", s.Do)
			break
		}
		h := p.hosts[s.Host]
		if h == nil {
			h = &placeHost{}
			p.hosts[s.Host] = h
		}
		p.Tick(h, s)
		act(p, h, s)
		switch s.Do {
		case "Activate":
			r.Grants++
		case "Check":
			r.Emits++
		}
	}
	return r
}

// Tick is the time that passes before a step.
func (p *placement) Tick(_ *placeHost, s PlaceStep) { p.now = s.At }

func (p *placement) living(authority string, storeMS int64) bool {
	m := p.member[authority]
	return m.life > 0 && storeMS < m.endMS
}

// Grant: the store grants or renews a membership.
func (p *placement) Grant(_ *placeHost, s PlaceStep) {
	m := p.member[s.Authority]
	switch living := p.living(s.Authority, s.StoreMS); {
	case living && s.Life != m.life:
		p.breaks("Grant: %s gets membership %d, and %d has %d ms left", s.Authority, s.Life, m.life, m.endMS-s.StoreMS)
	case !living && s.Life <= m.life:
		p.breaks("Grant: %s gets membership %d after %d has ended", s.Authority, s.Life, m.life)
	}
	p.member[s.Authority] = placeMember{s.Life, s.StoreMS + s.TermMS}
}

// Joined: the host hears of its membership, and counts it from before it asked.
func (p *placement) Joined(h *placeHost, s PlaceStep) {
	if p.member[s.Authority].life != s.Life {
		p.breaks("Joined: %s hears of membership %d, and the store has %d", s.Host, s.Life, p.member[s.Authority].life)
	}
	until := s.Sent + time.Duration(s.TermMS)*time.Millisecond
	if h.life != s.Life { // what runs from the life before is passivated
		h.ends = h.runs > 0
		h.life, h.until = s.Life, 0
	}
	h.until = max(h.until, until)
}

func (p *placement) isMember(h *placeHost) bool { return !h.down && h.life > 0 && p.now < h.until }

// Leave: the store takes a membership back (rule "kept").
func (p *placement) Leave(h *placeHost, s PlaceStep) {
	if h.runs != 0 || h.owns != 0 || h.write.version != 0 && !h.written {
		p.breaks("Leave: %s gives membership %d back, and has token %d", s.Host, s.Life, max(h.runs, h.owns, h.write.token))
	}
	p.member[s.Authority] = placeMember{s.Life, s.StoreMS}
	h.life, h.until = 0, 0
}

// free is Free of Placement.tla (rule "ended").
func (p *placement) free(s PlaceStep) bool {
	r := p.record
	return r.owner == "" || r.owner == s.Authority && r.life <= s.Life || p.member[r.owner].life != r.life || !p.living(r.owner, s.StoreMS)
}

// Write: the host has read the record, and sends the next. A write that is not newer, because the
// record has changed meanwhile, comes to nothing.
func (p *placement) Write(h *placeHost, s PlaceStep) {
	h.write, h.written = placeRecord{s.Authority, s.Life, s.Version, s.Token}, false
	switch {
	case s.Version <= p.record.version:
	case !p.isMember(h) || h.life != s.Life:
		p.breaks("IsMember: %s sends a record with token %d under membership %d, and has %d until %v", s.Host, s.Token, s.Life, h.life, h.until)
	case s.Version != p.record.version+1 || s.Token <= p.record.token:
		p.breaks("Write: %s sends version %d with token %d after version %d with token %d", s.Host, s.Version, s.Token, p.record.version, p.record.token)
	case h.owns != 0:
		p.breaks("Write: %s sends a record with token %d, and has token %d", s.Host, s.Token, h.owns)
	case !p.free(s):
		p.breaks("Free: %s sends a record with token %d, and membership %d of %s, the owner, lasts", s.Host, s.Token, p.record.life, p.record.owner)
	}
}

// Written: the store has the record (rule "newer").
func (p *placement) Written(h *placeHost, s PlaceStep) {
	switch {
	case h.write.version != s.Version || h.write.token != s.Token:
		p.breaks("Written: %s has not sent version %d with token %d", s.Host, s.Version, s.Token)
	case s.Version <= p.record.version:
		p.breaks("Written: version %d of %s replaces version %d", s.Version, s.Host, p.record.version)
	}
	p.record = h.write
	if h.written = true; !h.down {
		h.owns = s.Token
	}
}

// Outrun: the record that was sent is not newer.
func (p *placement) Outrun(h *placeHost, s PlaceStep) {
	if s.Version > p.record.version {
		p.breaks("Outrun: the store refuses version %d of %s, and has version %d", s.Version, s.Host, p.record.version)
	}
	if h.write.version == s.Version {
		h.written = true
	}
}

// Activate: the host has its process activate the actor (rule "in time").
func (p *placement) Activate(h *placeHost, s PlaceStep) {
	switch {
	case !p.isMember(h):
		p.breaks("Activate: %s activates token %d at %v, and its membership ended at %v", s.Host, s.Token, s.At, h.until)
	case h.owns != s.Token:
		p.breaks("Activate: %s activates token %d, and has %d on record", s.Host, s.Token, h.owns)
	case h.runs != 0 || h.proc != 0:
		p.breaks("Activate: %s activates token %d, and its process has token %d", s.Host, s.Token, max(h.runs, h.proc))
	case s.Token <= p.greatest:
		p.breaks("TokensRise: %s activates token %d after token %d", s.Host, s.Token, p.greatest)
	}
	p.greatest = max(p.greatest, s.Token)
	h.runs, h.proc, h.last, h.relies, h.ends = s.Token, s.Token, s.At, 0, false
}

// Check tells the process until when it may rely on the actor (rules "bounded" and "short").
func (p *placement) Check(h *placeHost, s PlaceStep) {
	switch {
	case h.proc != s.Token || h.runs != s.Token || h.ends:
		p.breaks("Check: %s may rely on token %d, and its host runs %d, on the way out: %v", s.Host, s.Token, h.runs, h.ends)
	case s.Until > h.until || h.down:
		p.breaks("Promised: %s may rely on token %d until %v, and its membership ends at %v", s.Host, s.Token, s.Until, h.until)
	case s.Until > s.At+p.Promise:
		p.breaks("Promised: %s may rely on token %d for %v, longer than %v", s.Host, s.Token, s.Until-s.At, p.Promise)
	}
	for name, other := range p.hosts {
		if other != h && other.proc != 0 && s.At < other.relies && s.At < s.Until {
			p.breaks("OneLive: %s relies on token %d, and %s on token %d until %v", s.Host, s.Token, name, other.proc, other.relies)
		}
	}
	h.last, h.relies = s.At, max(h.relies, s.Until)
}

// Passivate: the host ends its actor.
func (p *placement) Passivate(h *placeHost, s PlaceStep) {
	if h.down || h.owns == 0 {
		p.breaks("Passivate: %s ends token %d, which it does not have", s.Host, s.Token)
	}
	h.ends = true
}

// Stop: the process hears of it.
func (p *placement) Stop(h *placeHost, s PlaceStep) {
	if h.proc != s.Token || !h.ends {
		p.breaks("Stop: the process of %s ends token %d, has %d, and was told: %v", s.Host, s.Token, h.proc, h.ends)
	}
	h.proc, h.relies = 0, 0
}

// Remove: the host takes its name out of the record, which keeps version and token. It may
// take long until the store has that.
func (p *placement) Remove(h *placeHost, s PlaceStep) {
	if s.Stored {
		if s.Version >= p.record.version && (p.record.owner == s.Authority || s.Version > p.record.version) {
			p.record = placeRecord{version: s.Version, token: max(s.Token, p.record.token)}
		}
		return
	}
	switch {
	case h.runs != 0 && !h.ends:
		p.breaks("Remove: %s removes token %d, which it runs", s.Host, s.Token)
	case h.proc != 0 && s.At < h.last+p.Patience:
		p.breaks("Remove: %s removes token %d, and waits for its process until %v", s.Host, s.Token, h.last+p.Patience)
	}
	h.owns, h.runs, h.ends = 0, 0, false
	h.write = placeRecord{}
}

// Crash: a daemon ends without a word. Its process may live on.
func (p *placement) Crash(h *placeHost, _ PlaceStep) { h.down = true }

// Die: a process ends.
func (p *placement) Die(h *placeHost, _ PlaceStep) { h.proc, h.relies = 0, 0 }
