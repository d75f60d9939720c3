package kazahanatest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/internal/wire"
)

// Authority is the Fake's name as the only member.
const Authority = "fake:1"

// promise is how long a check promises an activation.
const promise = 3 * time.Second

type actor struct{ kind, identity string }

// placement is the Fake's placement of actors.
type placement struct {
	executors   []*conn // in the order in which they registered
	activations map[actor]*activation
	records     map[actor]kazahana.PlacementRecord
	snapshots   map[actor][]byte
	watchers    map[*conn][]string // and the events that they want
}

func newPlacement() placement {
	return placement{
		activations: map[actor]*activation{}, records: map[actor]kazahana.PlacementRecord{},
		snapshots: map[actor][]byte{}, watchers: map[*conn][]string{},
	}
}

// place is a connection's part of placement.
type place struct {
	kinds  []string
	lastID uint32
	asked  map[uint32]func(*wire.Request)
}

// activation is an actor's activation. The Fake's mu guards it.
type activation struct {
	actor
	*kazahana.PlacementRecord
	holder  *conn
	leaving bool
	busy    chan struct{} // closed when the holder has answered; nil without a request
	failure *wire.Error
}

func (a *activation) resolution(now time.Time) kazahana.Resolution {
	return kazahana.Resolution{
		Kind: a.kind, Identity: a.identity, Authority: Authority, Locality: "local", PID: a.PID, Version: a.Version, Token: a.Token, ObservedMS: now.UnixMilli(),
	}
}

// Passivate makes the actor's process passivate it, as a daemon does with an idle actor,
// and waits for that. It reports whether the actor was active.
func (f *Fake) Passivate(kind, identity string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.activations[actor{kind, identity}]
	if a != nil {
		f.finish(a)
	}
	return a != nil
}

// finish passivates an activation, and waits for that without mu.
func (f *Fake) finish(a *activation) {
	for f.activations[a.actor] == a {
		busy := f.passivate(a)
		f.mu.Unlock()
		<-busy // at the latest when the connection ends
		f.mu.Lock()
	}
}

// ask sends a request to a client.
func (f *Fake) ask(c *conn, method string, params any, answered func(*wire.Request)) {
	c.lastID++
	id := c.lastID
	if c.asked == nil {
		c.asked = map[uint32]func(*wire.Request){}
	}
	c.asked[id] = answered
	c.send(func() error { return c.Request(id, method, params) })
}

// answered takes a client's answer.
func (f *Fake) answered(c *conn, r *wire.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if answered := c.asked[r.ID]; answered != nil {
		delete(c.asked, r.ID)
		answered(r)
	}
}

// find returns the actor's activation, and begins one if there is none.
func (f *Fake) find(key actor) (*activation, error) {
	if a := f.activations[key]; a != nil {
		return a, nil
	}
	load := map[*conn]int{}
	for _, a := range f.activations {
		load[a.holder]++
	}
	able := slices.DeleteFunc(slices.Clone(f.executors), func(c *conn) bool { return !slices.Contains(c.kinds, key.kind) })
	if len(able) == 0 {
		return nil, wire.Errorf(wire.CodePlacementUnserved, "no process of any host has registered for this kind: %q", key.kind)
	}
	holder := slices.MinFunc(able, func(a, b *conn) int { return cmp.Compare(load[a], load[b]) })
	before := f.records[key]
	a := &activation{actor: key, holder: holder, busy: make(chan struct{})}
	a.PlacementRecord = &kazahana.PlacementRecord{Owner: Authority, Version: before.Version + 1, Token: before.Token + 1}
	f.activations[key], f.records[key] = a, *a.PlacementRecord
	params := map[string]any{"kind": key.kind, "identity": key.identity, "version": a.Version, "token": a.Token, "snapshot": f.snapshots[key]}
	f.ask(holder, "Activate", params, func(r *wire.Request) {
		var answer struct {
			PID string `json:"pid"`
		}
		if err := r.Answer(&answer); err != nil {
			f.fail(a, err)
			return
		}
		a.PID = answer.PID
		f.records[key] = *a.PlacementRecord
		f.tell("activated", a, "")
		close(a.busy)
		a.busy = nil
	})
	return a, nil
}

// fail ends an activation that did not succeed.
func (f *Fake) fail(a *activation, cause error) {
	a.failure = wire.Errorf(wire.CodeActivationFailed, "the activation has failed").With("cause", cause)
	f.tell("activation_failed", a, cause.Error())
	f.remove(a)
}

func (f *Fake) remove(a *activation) {
	delete(f.activations, a.actor)
	f.records[a.actor] = kazahana.PlacementRecord{Version: a.Version, Token: a.Token}
	if a.busy != nil {
		close(a.busy)
	}
}

// passivate begins a passivation, unless a request is under way. The returned channel is
// closed when that is over.
func (f *Fake) passivate(a *activation) <-chan struct{} {
	if a.busy != nil {
		return a.busy
	}
	a.busy, a.leaving = make(chan struct{}), true
	params := map[string]any{"kind": a.kind, "identity": a.identity, "version": a.Version, "token": a.Token}
	f.ask(a.holder, "Passivate", params, func(r *wire.Request) {
		var answer struct {
			Snapshot []byte `json:"snapshot"`
		}
		reason := ""
		if err := r.Answer(&answer); err != nil {
			reason = err.Error()
		} else if answer.Snapshot != nil {
			f.snapshots[a.actor] = answer.Snapshot
		}
		f.tell("passivated", a, reason)
		f.remove(a)
	})
	return a.busy
}

// endAll ends all activations at the end of a connection.
func (f *Fake) endAll(c *conn) {
	f.executors = slices.DeleteFunc(f.executors, func(e *conn) bool { return e == c })
	delete(f.watchers, c)
	c.asked = nil
	for _, a := range f.of(c) {
		if a.busy != nil && !a.leaving {
			f.fail(a, fmt.Errorf("the process has closed its connection"))
			continue
		}
		f.tell("passivated", a, "the process is gone")
		f.remove(a)
	}
}

// of returns the activations of a connection, or all if it is nil, sorted by kind and
// identity.
func (f *Fake) of(c *conn) []*activation {
	all := slices.DeleteFunc(slices.Collect(maps.Values(f.activations)), func(a *activation) bool { return c != nil && a.holder != c })
	slices.SortFunc(all, func(a, b *activation) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.identity, b.identity))
	})
	return all
}

func (f *Fake) tell(event string, a *activation, reason string) {
	notice := kazahana.PlacementEvent{
		Event: event, Kind: a.kind, Identity: a.identity, Authority: Authority, PID: a.PID, Version: a.Version, Token: a.Token, Reason: reason, ObservedMS: f.now.UnixMilli(),
	}
	for c, events := range f.watchers {
		if slices.Contains(events, event) {
			c.send(func() error { return c.Notify("Placement.Event", notice) })
		}
	}
}

func (q query) actor() (actor, error) {
	kind, err := q.text(0)
	if err != nil {
		return actor{}, err
	}
	identity, err := q.text(1)
	if err == nil && (kind == "" || identity == "") {
		err = invalid("the kind or the identity is empty")
	}
	return actor{kind, identity}, err
}

func (q query) placementResolve() (any, error) {
	key, err := q.actor()
	if err != nil {
		return nil, err
	}
	a, err := q.find(key)
	if err != nil {
		return nil, err
	}
	wait := kazahana.DefaultResolveWait
	if ms, ok := q.options["wait_ms"].(int64); ok {
		wait = time.Duration(ms) * time.Millisecond
	}
	pending := wire.Errorf(wire.CodePlacementPending, "the activation is under way")
	q.tell("resolved", a, "")
	switch {
	case a.busy == nil:
		return a.resolution(q.now), nil
	case wait == 0:
		return nil, pending
	}
	return later(func() (any, error) {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		q.mu.Lock()
		defer q.mu.Unlock()
		for {
			busy, leaving := a.busy, a.leaving
			if busy != nil {
				q.mu.Unlock()
				var over bool
				select {
				case <-busy:
				case <-timer.C:
					over = true
				case <-q.conn.gone:
					over = true
				}
				q.mu.Lock()
				if over {
					return nil, pending
				}
			}
			switch {
			case a.failure != nil:
				return nil, a.failure
			case !leaving:
				return a.resolution(q.now), nil
			}
			if a, err = q.find(key); err != nil {
				return nil, err
			}
		}
	}), nil
}

func (q query) placementRegister() (any, error) {
	var kinds []any
	if len(q.params) > 0 {
		kinds, _ = q.params[0].([]any)
	}
	if len(kinds) == 0 {
		return nil, invalid("parameter 1 must be the kinds, at least one")
	}
	for _, kind := range kinds {
		text, ok := kind.(string)
		if !ok || text == "" {
			return nil, invalid("a kind must be a string that is not empty")
		}
		if !slices.Contains(q.conn.kinds, text) {
			q.conn.kinds = append(q.conn.kinds, text)
		}
	}
	if !slices.Contains(q.executors, q.conn) {
		q.executors = append(q.executors, q.conn)
	}
	return map[string]any{"authority": Authority, "ttl_ms": 10_000, "kinds": slices.Clone(q.conn.kinds)}, nil
}

func (q query) placementUnregister() (any, error) {
	q.executors = slices.DeleteFunc(q.executors, func(c *conn) bool { return c == q.conn })
	return later(func() (any, error) {
		q.mu.Lock()
		defer q.mu.Unlock()
		for n := 0; ; n++ {
			all := q.of(q.conn)
			if len(all) == 0 {
				return map[string]any{"passivated": n}, nil
			}
			q.finish(all[0])
		}
	}), nil
}

func (q query) placementCheck() (any, error) {
	key, err := q.actor()
	if err != nil {
		return nil, err
	}
	token, err := q.integer(2)
	if err != nil {
		return nil, err
	}
	if a := q.activations[key]; a == nil || a.holder != q.conn || a.Token != token || a.leaving {
		return nil, wire.Errorf(wire.CodeActivationEnded, "the activation of token %d has ended", token)
	}
	return map[string]any{"valid_ms": promise.Milliseconds()}, nil
}

func (q query) placementWatch() (any, error) {
	events := []string{"lock_denied", "activated", "activation_failed", "passivated"}
	if wanted, ok := q.options["events"].([]any); ok {
		events = nil
		for _, name := range wanted {
			events = append(events, fmt.Sprint(name))
		}
	}
	q.watchers[q.conn] = events
	return map[string]any{"authority": Authority, "state": "member"}, nil
}

func (q query) placementSnapshot() (any, error) {
	s := kazahana.PlacementSnapshot{
		State: "member", Authority: Authority, Members: []kazahana.PlacementMember{{Authority: Authority, Token: 1}}, ActivationsTotal: len(q.activations),
	}
	for _, c := range q.executors {
		s.Kinds = append(s.Kinds, c.kinds...)
	}
	slices.Sort(s.Kinds)
	s.Kinds = slices.Compact(s.Kinds)
	only := actor{}
	only.kind, _ = q.options["kind"].(string)
	only.identity, _ = q.options["identity"].(string)
	after, _ := q.options["after"].(string)
	limit, ok := q.options["limit"].(int64)
	if !ok {
		limit = 100
	}
	for _, a := range q.of(nil) {
		if only != (actor{}) && a.actor != only || a.kind+"/"+a.identity <= after || len(s.Activations) == int(limit) {
			continue
		}
		doing := "resting"
		if a.busy != nil {
			doing = "activating"
			if a.leaving {
				doing = "passivating"
			}
		}
		s.Activations = append(s.Activations, kazahana.ActivationStatus{
			Kind: a.kind, Identity: a.identity, Doing: doing, Active: a.busy == nil || a.leaving, PID: a.PID, Version: a.Version, Token: a.Token,
		})
	}
	if only != (actor{}) {
		s.Key = &kazahana.PlacementKey{Authority: Authority, Locality: "local"}
		if r, ok := q.records[only]; ok {
			s.Key.Record = &r
		}
	}
	return s, nil
}
