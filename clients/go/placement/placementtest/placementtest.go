// Package placementtest has a fake daemon that places actors, for the unit tests of
// programs with Executors.
package placementtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/clients/go/kazahanatest"
	"github.com/kazahana/kazahana/clients/go/placement"
)

// Authority is the Fake's name as the only member.
const Authority = "fake:1"

// promise is how long a check promises an activation.
const promise = 3 * time.Second

type actor struct{ kind, identity string }

// A Fake is a kazahanatest.Fake with one host, on which actors live. They are activated by the
// Executors of its clients.
type Fake struct {
	*kazahanatest.Fake

	mu          sync.Mutex
	executors   []*conn // in the order in which they registered
	kinds       map[*conn][]string
	activations map[actor]*activation
	records     map[actor]placement.Record
	snapshots   map[actor][]byte
	watchers    map[*conn]*watcher
}

// watcher is a client that wants events.
type watcher struct {
	wanted []string
	sent   chan struct{} // closed when the last event is on its way
}

type conn = kazahanatest.Conn

// New returns a Fake.
func New() *Fake {
	f := &Fake{
		Fake: kazahanatest.New(), kinds: map[*conn][]string{}, activations: map[actor]*activation{}, records: map[actor]placement.Record{},
		snapshots: map[actor][]byte{}, watchers: map[*conn]*watcher{},
	}
	for method, answer := range methods {
		f.Handle("Placement."+method, func(r kazahanatest.Request) (any, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return answer(query{f, r})
		})
	}
	return f
}

// query is a request that is being answered. The Fake is locked.
type query struct {
	*Fake
	kazahanatest.Request
}

var methods = map[string]func(query) (any, error){
	"Resolve": query.resolve, "Register": query.register, "Unregister": query.unregister,
	"Check": query.check, "Watch": query.watch, "Snapshot": query.snapshot,
}

// activation is an actor's activation. The Fake's mu guards it.
type activation struct {
	actor
	*placement.Record
	holder  *conn
	leaving bool
	busy    chan struct{} // closed when the holder has answered; nil without a request
	failure error
}

func (a *activation) resolution(now time.Time) placement.Resolution {
	return placement.Resolution{
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

// ask sends a request to a client, and stores the answer in result.
func (f *Fake) ask(c *conn, method string, params, result any, answered func(refusal error)) {
	go func() {
		err := c.Call(context.Background(), method, result, params)
		var own *kazahana.Error
		if errors.As(err, &own) && own.Code == kazahana.ErrProtocol {
			err = errors.New(own.Message) // the error of a user's function has no code
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if c.Err() == nil { // else endAll ends the activation
			answered(err)
		}
	}()
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
	able := slices.DeleteFunc(slices.Clone(f.executors), func(c *conn) bool { return !slices.Contains(f.kinds[c], key.kind) })
	if len(able) == 0 {
		return nil, refuse(placement.ErrUnserved, "no process of any host has registered for this kind: %q", key.kind)
	}
	holder := slices.MinFunc(able, func(a, b *conn) int { return cmp.Compare(load[a], load[b]) })
	before := f.records[key]
	a := &activation{actor: key, holder: holder, busy: make(chan struct{})}
	a.Record = &placement.Record{Owner: Authority, Version: before.Version + 1, Token: before.Token + 1}
	f.activations[key], f.records[key] = a, *a.Record
	params := map[string]any{"kind": key.kind, "identity": key.identity, "version": a.Version, "token": a.Token, "snapshot": f.snapshots[key]}
	var answer struct {
		PID string `json:"pid"`
	}
	f.ask(holder, "Activate", params, &answer, func(err error) {
		if err != nil {
			f.fail(a, err)
			return
		}
		a.PID = answer.PID
		f.records[key] = *a.Record
		f.tell("activated", a, "")
		close(a.busy)
		a.busy = nil
	})
	return a, nil
}

// fail ends an activation that did not succeed.
func (f *Fake) fail(a *activation, cause error) {
	a.failure = &kazahana.Error{
		Code: placement.ErrActivationFailed, Message: "the activation has failed", Details: map[string]string{"cause": cause.Error()},
	}
	f.tell("activation_failed", a, cause.Error())
	f.remove(a)
}

func (f *Fake) remove(a *activation) {
	delete(f.activations, a.actor)
	f.records[a.actor] = placement.Record{Version: a.Version, Token: a.Token}
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
	var answer struct {
		Snapshot []byte `json:"snapshot"`
	}
	f.ask(a.holder, "Passivate", params, &answer, func(err error) {
		reason := ""
		if err != nil {
			reason = err.Error()
		} else if answer.Snapshot != nil {
			f.snapshots[a.actor] = answer.Snapshot
		}
		f.tell("passivated", a, reason)
		f.remove(a)
	})
	return a.busy
}

// endAll waits for the end of a connection, and ends its activations.
func (f *Fake) endAll(c *conn) {
	<-c.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.executors = slices.DeleteFunc(f.executors, func(e *conn) bool { return e == c })
	delete(f.watchers, c)
	delete(f.kinds, c)
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
	var all []*activation
	for _, a := range f.activations {
		if c == nil || a.holder == c {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b *activation) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.identity, b.identity))
	})
	return all
}

func (f *Fake) tell(event string, a *activation, reason string) {
	notice := placement.Event{
		Event: event, Kind: a.kind, Identity: a.identity, Authority: Authority, PID: a.PID, Version: a.Version, Token: a.Token, Reason: reason, ObservedMS: f.Now().UnixMilli(),
	}
	for c, w := range f.watchers {
		if slices.Contains(w.wanted, event) {
			before, sent := w.sent, make(chan struct{})
			w.sent = sent
			go func() { // a client that does not read keeps no other waiting
				<-before
				_ = c.Notify("Placement.Event", notice) // or it is gone
				close(sent)
			}()
		}
	}
}

// param returns a parameter, or nil.
func (q query) param(i int) any {
	if i < len(q.Params) {
		return q.Params[i]
	}
	return nil
}

func (q query) actor() (actor, error) {
	var key actor
	key.kind, _ = q.param(0).(string)
	key.identity, _ = q.param(1).(string)
	if key.kind == "" || key.identity == "" {
		return actor{}, refuse(kazahana.ErrInvalidParams, "the first parameters must be a kind and an identity")
	}
	return key, nil
}

func refuse(code kazahana.Code, format string, args ...any) error {
	return &kazahana.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

func (q query) resolve() (any, error) {
	key, err := q.actor()
	if err != nil {
		return nil, err
	}
	a, err := q.find(key)
	if err != nil {
		return nil, err
	}
	wait := placement.DefaultResolveWait
	if ms, ok := q.Options["wait_ms"].(int64); ok {
		wait = time.Duration(ms) * time.Millisecond
	}
	pending := refuse(placement.ErrPending, "the activation is under way")
	q.tell("resolved", a, "")
	switch {
	case a.busy == nil:
		return a.resolution(q.Now()), nil
	case wait == 0:
		return nil, pending
	}
	return kazahanatest.Later(func() (any, error) {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		q.mu.Lock()
		defer q.mu.Unlock()
		for {
			busy, leaving := a.busy, a.leaving
			if busy != nil {
				q.mu.Unlock()
				over := true
				select {
				case <-busy:
					over = false
				case <-timer.C:
				case <-q.Conn.Done():
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
				return a.resolution(q.Now()), nil
			}
			if a, err = q.find(key); err != nil {
				return nil, err
			}
		}
	}), nil
}

func (q query) register() (any, error) {
	kinds, _ := q.param(0).([]any)
	if len(kinds) == 0 {
		return nil, refuse(kazahana.ErrInvalidParams, "parameter 1 must be the kinds, at least one")
	}
	for _, kind := range kinds {
		text, ok := kind.(string)
		if !ok || text == "" {
			return nil, refuse(kazahana.ErrInvalidParams, "a kind must be a string that is not empty")
		}
		if !slices.Contains(q.kinds[q.Conn], text) {
			q.kinds[q.Conn] = append(q.kinds[q.Conn], text)
		}
	}
	if !slices.Contains(q.executors, q.Conn) {
		q.executors = append(q.executors, q.Conn)
		go q.endAll(q.Conn)
	}
	return map[string]any{"authority": Authority, "ttl_ms": 10_000, "kinds": slices.Clone(q.kinds[q.Conn])}, nil
}

func (q query) unregister() (any, error) {
	q.executors = slices.DeleteFunc(q.executors, func(c *conn) bool { return c == q.Conn })
	return kazahanatest.Later(func() (any, error) {
		q.mu.Lock()
		defer q.mu.Unlock()
		for n := 0; ; n++ {
			all := q.of(q.Conn)
			if len(all) == 0 {
				return map[string]any{"passivated": n}, nil
			}
			q.finish(all[0])
		}
	}), nil
}

func (q query) check() (any, error) {
	key, err := q.actor()
	if err != nil {
		return nil, err
	}
	token, _ := q.param(2).(int64)
	if a := q.activations[key]; a == nil || a.holder != q.Conn || a.Token != token || a.leaving {
		return nil, refuse(placement.ErrActivationEnded, "the activation of token %d has ended", token)
	}
	return map[string]any{"valid_ms": promise.Milliseconds()}, nil
}

func (q query) watch() (any, error) {
	events := []string{"lock_denied", "activated", "activation_failed", "passivated"}
	if wanted, ok := q.Options["events"].([]any); ok {
		events = nil
		for _, name := range wanted {
			events = append(events, fmt.Sprint(name))
		}
	}
	sent := make(chan struct{})
	close(sent)
	q.watchers[q.Conn] = &watcher{events, sent}
	go q.endAll(q.Conn)
	return map[string]any{"authority": Authority, "state": "member"}, nil
}

func (q query) snapshot() (any, error) {
	s := placement.Snapshot{
		State: "member", Authority: Authority, Members: []placement.Member{{Authority: Authority, Token: 1}}, ActivationsTotal: len(q.activations),
	}
	for _, c := range q.executors {
		s.Kinds = append(s.Kinds, q.kinds[c]...)
	}
	slices.Sort(s.Kinds)
	s.Kinds = slices.Compact(s.Kinds)
	only := actor{}
	only.kind, _ = q.Options["kind"].(string)
	only.identity, _ = q.Options["identity"].(string)
	after, _ := q.Options["after"].(string)
	limit, ok := q.Options["limit"].(int64)
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
		s.Activations = append(s.Activations, placement.ActivationStatus{
			Kind: a.kind, Identity: a.identity, Doing: doing, Active: a.busy == nil || a.leaving, PID: a.PID, Version: a.Version, Token: a.Token,
		})
	}
	if only != (actor{}) {
		s.Key = &placement.Key{Authority: Authority, Locality: "local"}
		if r, ok := q.records[only]; ok {
			s.Key.Record = &r
		}
	}
	return s, nil
}
