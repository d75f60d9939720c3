package placement

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// State is the coordinator's ability at a moment.
type State string

// The states.
const (
	StateStopped  State = "stopped"
	StateNotReady State = "not_ready" // started, and no topology, or its membership has ended
	StateClient   State = "client"    // resolves keys, and is the authority of none
	StateMember   State = "member"
)

// Core is the coordinator of one host. It is not safe for concurrent use.
type Core struct {
	self     string // authority, "" for a client
	started  bool
	token    int64         // of the own membership, 0: none
	until    time.Duration // when that ends
	hosts    []Host        // as they were seen last
	kinds    []string      // that a process of this host has registered for
	topology *Topology     // of both; nil: not known yet
	strategy Strategy

	entries map[Key]*entry
	pids    pids
	pending map[RequestID]*entry
	retries []*entry // to be removed at the next Tick
	last    RequestID
	serial  uint64
	ignored uint64

	events   []Event
	spare    []Event // the last drained events, to be used again
	commands []Command
	done     []Done
}

// NewCore makes a coordinator that is stopped. authority is the host's name among
// the members, "" for a host that only resolves. A strategy of nil is Rendezvous.
func NewCore(authority string, s Strategy) *Core {
	if s == nil {
		s = Rendezvous
	}
	return &Core{self: authority, strategy: s, entries: map[Key]*entry{}, pids: pids{known: map[Key]remotePID{}}, pending: map[RequestID]*entry{}}
}

// Outcome is what to do after the core was told something.
type Outcome struct {
	Commands []Command // to carry out, those of one key in their order
	Done     []Done    // keys with an activation under way, and its outcome
}

// Done ends the wait for an activation.
type Done struct {
	Key        Key
	Resolution Resolution // if Err is nil
	Err        error
}

// Locality is where the authority of a key is.
type Locality string

// The localities.
const (
	Local  Locality = "local"
	Remote Locality = "remote"
)

// Resolution is where a key lives. PID, Version and Token are known of local ones; PID and
// RememberPID complete remote ones.
type Resolution struct {
	Key        Key
	Authority  string
	Locality   Locality
	PID        string
	Version    int64
	Token      int64
	ObservedMS int64 // when it was decided, Unix ms
}

// Start begins to coordinate.
func (c *Core) Start() { c.started = true }

// Stop ends it: all actors are passivated. The core has stopped when Idle reports so; until then
// results are still due.
func (c *Core) Stop(now Moment) Outcome {
	c.started = false
	c.loseAll(HostStops, now)
	return c.outcome()
}

// Idle reports whether nothing is activated or under way.
func (c *Core) Idle() bool { return len(c.entries) == 0 }

// SetKinds says for which kinds there is a process on this host. Actors of other kinds are
// passivated.
func (c *Core) SetKinds(kinds []string, now Moment) Outcome {
	c.kinds = slices.Clone(kinds)
	if c.topology != nil {
		c.setTopology(now)
	}
	return c.outcome()
}

// SetMembership says that this host is a member under the token until a time
// that it counts itself. Another token than before is another membership, and the actors
// from the one before have to go; token 0 is none.
func (c *Core) SetMembership(token int64, until time.Duration, now Moment) Outcome {
	if token != c.token {
		c.loseAll(MembershipEnded, now)
	}
	c.token, c.until = token, until
	return c.outcome()
}

// Tick has the core notice that its membership has ended, and try again what
// failed before. It is to be called at least every second.
func (c *Core) Tick(now Moment) Outcome {
	if c.token != 0 && now.Boot >= c.until {
		c.token = 0
		c.loseAll(MembershipEnded, now)
	}
	c.dropOldPIDs(now)
	c.retry(tickRetries)
	return c.outcome()
}

// A store that is down is not asked for all at once; a store that is back is asked for more and
// more.
const (
	tickRetries = 64 // at each Tick
	nextRetries = 2  // for each that has succeeded
)

// retry tries some of what failed before again.
func (c *Core) retry(n int) {
	n = min(n, len(c.retries))
	for _, e := range c.retries[:n] {
		c.remove(e)
	}
	c.retries = c.retries[n:]
}

// UpdateTopology says who the members are, and which kinds they announce. It passivates actors of
// which this host is not the authority any more.
func (c *Core) UpdateTopology(hosts []Host, now Moment) Outcome {
	hosts = latest(hosts)
	if c.topology == nil || !slices.EqualFunc(hosts, c.hosts, func(a, b Host) bool {
		return a.Member == b.Member && slices.Equal(a.Kinds, b.Kinds)
	}) {
		c.hosts = hosts
		c.setTopology(now)
	}
	return c.outcome()
}

// setTopology has this host serve the kinds that it has announced and still has a process for:
// others know of them, and no process could run the rest.
func (c *Core) setTopology(now Moment) {
	hosts := slices.Clone(c.hosts)
	for i, h := range hosts {
		if h.Authority == c.self {
			hosts[i].Kinds = slices.DeleteFunc(slices.Clone(h.Kinds), func(kind string) bool { return !slices.Contains(c.kinds, kind) })
		}
	}
	c.topology = NewTopology(hosts, c.strategy)
	c.dropMovedPIDs(now)
	if len(hosts) == 0 {
		return // without a member no host has authority over any actor
	}
	for _, e := range c.which(func(e *entry) bool { return c.topology.Authority(e.key) != c.self }) {
		why := OtherAuthority
		if c.topology.Authority(e.key) == "" {
			why = NoAuthority
		}
		c.lose(e, why, now)
	}
}

// State is what Resolve can do at the moment.
func (c *Core) State(now Moment) State {
	switch {
	case !c.started:
		return StateStopped
	case c.topology == nil || len(c.topology.hosts) == 0:
		return StateNotReady
	case c.self == "":
		return StateClient
	case !c.isMember(now):
		return StateNotReady
	}
	return StateMember
}

// isMember reports whether this host is a member by its own reckoning and by the known topology.
func (c *Core) isMember(now Moment) bool {
	return c.token != 0 && now.Boot < c.until && c.topology != nil && c.topology.Has(Member{c.self, c.token})
}

// Resolve tells where a key lives. Where that is here, and the key is not
// activated yet, the outcome has the commands that begin it.
//
// Errors: ErrInvalid; ErrNotReady; ErrUnserved; ErrPending, while an activation
// or passivation is under way: Outcome.Done of a later call tells its end.
func (c *Core) Resolve(key Key, now Moment) (Resolution, Outcome, error) {
	if err := key.Validate(); err != nil {
		return Resolution{}, Outcome{}, err
	}
	switch state := c.State(now); state {
	case StateStopped, StateNotReady:
		return Resolution{}, Outcome{}, fmt.Errorf("%w: %s", ErrNotReady, c.why(state))
	}
	if r, ok := c.known(key, now); ok {
		return r, c.outcome(), nil
	}
	if c.topology.Authority(key) == "" {
		return Resolution{}, c.outcome(), fmt.Errorf("%w: %q", ErrUnserved, key.Kind)
	}
	c.tell(Event{Kind: Resolved, Key: key, Authority: c.self, ObservedMS: now.UnixMS})
	switch e := c.entries[key]; {
	case e == nil:
		c.begin(key, now)
	case e.unwanted:
		e.asked = true
	}
	return Resolution{}, c.outcome(), ErrPending
}

// Known is Resolve for a key that can be answered with nothing to do: it is activated here, or it
// is another host's. Otherwise nothing has happened.
func (c *Core) Known(key Key, now Moment) (r Resolution, ok bool) {
	if s := c.State(now); key.Validate() != nil || s != StateMember && s != StateClient {
		return r, false
	}
	return c.known(key, now)
}

func (c *Core) known(key Key, now Moment) (r Resolution, ok bool) {
	if e := c.entries[key]; e != nil && e.resolved() {
		// A host that takes the key away makes it unwanted: there is nothing to hash.
		e.used = now.Boot
		r = e.resolution(c.self, now)
	} else if authority := c.topology.Authority(key); authority != "" && authority != c.self {
		r = Resolution{Key: key, Authority: authority, Locality: Remote, ObservedMS: now.UnixMS}
	} else {
		return r, false
	}
	c.tell(Event{Kind: Resolved, Key: key, Authority: r.Authority, ObservedMS: now.UnixMS})
	return r, true
}

func (c *Core) why(s State) string {
	switch {
	case s == StateStopped:
		return "it is stopped"
	case c.topology == nil:
		return "the members are not known yet"
	case len(c.topology.hosts) == 0:
		return "there are no members"
	}
	return MembershipEnded
}

// PassivateIdle passivates actors that have not been resolved for so long.
func (c *Core) PassivateIdle(ttl time.Duration, now Moment) Outcome {
	for _, e := range c.which(func(e *entry) bool { return e.activated && now.Boot-e.used >= ttl }) {
		c.lose(e, NotAskedFor, now)
	}
	return c.outcome()
}

// MaxPromise bounds for how long Check says that an activation may be relied on. A
// process that has not answered a Passivate for longer relies on nothing any more.
const MaxPromise = 3 * time.Second

// Check tells for how long a process may rely on the activation of a token,
// counted from now, and whether it may at all. While the process is being asked
// for the activation it may.
func (c *Core) Check(key Key, token int64, now Moment) (valid time.Duration, ok bool) {
	e := c.entries[key]
	if e == nil || e.record.Token != token || e.unwanted || !c.isMember(now) {
		return 0, false
	}
	return min(c.until-now.Boot, MaxPromise), true
}

// Evict passivates the activation of a token, and reports whether it is there:
// Outcome.Done of a later call then tells its end, as with ErrPending.
func (c *Core) Evict(key Key, token int64, now Moment) (o Outcome, there bool) {
	e := c.entries[key]
	if there = e != nil && e.record.Token == token; there {
		e.asked = true
		c.lose(e, LetGo, now)
	}
	return c.outcome(), there
}

// Ended says that a process has lost an activation, as when its connection died.
// The token tells which one.
func (c *Core) Ended(key Key, token int64, now Moment) Outcome {
	e := c.entries[key]
	switch {
	case e == nil || e.record.Token != token:
	case e.step == ensuring:
		e.ended = true // before its answer was told
	case e.activated:
		e.activated, e.unwanted = false, true
		c.tellPassivated(e, ProcessGone, nil, now)
		if e.step == resting {
			c.remove(e)
		}
	}
	return c.outcome()
}

func (c *Core) loseAll(why string, now Moment) {
	for _, e := range c.which(func(*entry) bool { return true }) {
		c.lose(e, why, now)
	}
}

// which are some of the keys, in the order in which they came: the core's actions depend on its
// inputs alone.
func (c *Core) which(some func(*entry) bool) (entries []*entry) {
	for _, e := range c.entries {
		if some(e) {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.serial, b.serial) })
	return entries
}

func (c *Core) outcome() Outcome {
	o := Outcome{c.commands, c.done}
	c.commands, c.done = nil, nil
	return o
}

func (c *Core) tell(e Event) { c.events = append(c.events, e) }

// maxSpare is how many events are made room for ahead. A resolve has one.
const maxSpare = 64

// DrainEvents returns what happened since it was last called, in its order. The
// next call takes the slice back.
func (c *Core) DrainEvents() []Event {
	events := c.events
	c.events, c.spare = c.spare[:0], nil
	if cap(events) <= maxSpare {
		c.spare = events
	}
	return events
}

// Activation is one key in a snapshot.
type Activation struct {
	Key     Key
	Doing   string // resting, or the work under way
	Active  bool
	Record  Record
	IdleFor time.Duration
}

// Snapshot is the coordinator at a moment.
type Snapshot struct {
	State       State
	Authority   string
	Members     []Host
	Activations []Activation // of a Page, in the order of their keys, or of a Single
	Total       int          // of activations
	Ignored     uint64       // results that matched no request
	LivesAt     string       // Single: the authority of the key
}

// Overview is a Snapshot without activations, of which there can be many.
func (c *Core) Overview(now Moment) Snapshot {
	s := Snapshot{State: c.State(now), Authority: c.self, Ignored: c.ignored, Total: len(c.entries)}
	if c.topology != nil {
		s.Members = c.topology.Hosts()
	}
	return s
}

func (e *entry) activation(now Moment) Activation {
	return Activation{e.key, string(e.step), e.activated, e.record, now.Boot - e.used}
}

// Page is an Overview with those activations that come next after a key, the first
// of all after none, in the order of Key.Compare. It makes room for no more than twice the limit.
func (c *Core) Page(after Key, limit int, now Moment) Snapshot {
	s := c.Overview(now)
	var first []*entry
	keep := func() {
		slices.SortFunc(first, func(a, b *entry) int { return a.key.Compare(b.key) })
		first = first[:min(limit, len(first))]
	}
	last := Key{} // of a page that is full already
	for key, e := range c.entries {
		if limit == 0 || after != (Key{}) && key.Compare(after) <= 0 || last != (Key{}) && key.Compare(last) > 0 {
			continue
		}
		if first = append(first, e); len(first) == 2*limit {
			keep()
			last = first[limit-1].key
		}
	}
	keep()
	for _, e := range first {
		s.Activations = append(s.Activations, e.activation(now))
	}
	return s
}

// Single is an Overview with the authority of one key and its activation, if there are any.
func (c *Core) Single(key Key, now Moment) Snapshot {
	s := c.Overview(now)
	if c.topology != nil {
		s.LivesAt = c.topology.Authority(key)
	}
	if e := c.entries[key]; e != nil {
		s.Activations = append(s.Activations, e.activation(now))
	}
	return s
}

// IsRefusal reports whether a store's error says that nothing was written.
func IsRefusal(err error) bool {
	return errors.Is(err, ErrStale) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrNoRoom)
}
