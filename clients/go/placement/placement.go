// Package placement says on which host an actor lives, a thing with state that is to exist
// once, and makes a process there activate it. It is experimental, and off unless the
// daemon has placement_authority.
//
//	p := placement.New(client)
//	registration, err := p.Register(ctx, placement.Executor{Kinds: ..., Activate: ...})
//	where, err := p.Resolve(ctx, "room", "lobby")
package placement

import (
	"context"
	"fmt"
	"net"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/clients/go/internal/twoway"
)

// Placement makes the calls about actors for a Client.
type Placement struct{ client *kazahana.Client }

// New returns the Placement of a Client.
func New(client *kazahana.Client) *Placement { return &Placement{client} }

const (
	// DefaultResolveWait is how long Resolve waits for an activation by default.
	DefaultResolveWait = 10 * time.Second
	// MaxResolveWait is the longest wait of Resolve.
	MaxResolveWait = 10 * time.Minute

	// eventsAhead is how many events are read ahead. Further ones wait in the daemon.
	eventsAhead = 256
)

// A Resolution is where an actor lives.
type Resolution struct {
	Kind      string `json:"kind"`
	Identity  string `json:"identity"`
	Authority string `json:"authority"` // the host:port of the daemon that the actor belongs to
	Locality  string `json:"locality"`  // local: on this host; or remote
	// The next three are set for local actors, and for remote ones WithPID.
	PID        string `json:"pid"`         // the process's name for it
	Version    int64  `json:"version"`     // number of the activation, from 1 on
	Token      int64  `json:"token"`       // fencing token of the activation
	ObservedMS int64  `json:"observed_ms"` // when it was decided, Unix ms
}

// IsLocal reports whether the actor lives on this host.
func (r Resolution) IsLocal() bool { return r.Locality == "local" }

// An Option is an option of Resolve.
type Option func(*resolveOptions)

type resolveOptions struct {
	wait time.Duration
	pid  bool
}

// WithWait says how long Resolve waits for an activation that is under way, 0 (not at all)
// to MaxResolveWait. Default: DefaultResolveWait.
func WithWait(wait time.Duration) Option { return func(o *resolveOptions) { o.wait = wait } }

// WithPID makes Resolve return the pid, version and token of a remote actor too, which may
// cost a read of the store. They are as old as the daemon's topology_interval at most. An
// empty pid says that the actor is not active there, or that the store did not answer.
func WithPID() Option { return func(o *resolveOptions) { o.pid = true } }

// Resolve returns where the actor of a kind and an identity lives. If that is this host and
// the actor is not active, Resolve activates it. WithWait limits the wait for that, in
// addition to the Client's timeout.
//
// The error is a *PendingError or a *LockHeldError when the wait is over,
// an *ActivationFailedError, a *NotReadyError, or an ErrUnserved if no
// process of any host has registered for the kind.
func (p *Placement) Resolve(ctx context.Context, kind, identity string, opts ...Option) (r Resolution, err error) {
	o := resolveOptions{wait: DefaultResolveWait}
	for _, opt := range opts {
		opt(&o)
	}
	wait := o.wait
	if wait < 0 || wait > MaxResolveWait {
		return r, invalid("a wait of %v: must be 0 to %v", wait, MaxResolveWait)
	}
	began := time.Now()
	options := kazahana.Remaining(func(left time.Duration) any {
		left = min(kazahana.DaemonTime(left), wait-time.Since(began))
		sent := map[string]any{"wait_ms": max(left, 0).Milliseconds()}
		if o.pid {
			sent["pid"] = true
		}
		return sent
	})
	err = p.client.CallWithin(ctx, wait+p.client.Timeout(), "Placement.Resolve", &r, kind, identity, options)
	if err == nil && r.Authority == "" {
		err = &kazahana.Error{Code: kazahana.ErrProtocol, Message: "the answer to Placement.Resolve has no authority"}
	}
	return r, typed(err)
}

// Query selects a part of a daemon's placement. The zero value selects the first
// activations.
type Query struct {
	// After is the "kind/identity" of the last activation of the previous page.
	After string `json:"after,omitempty"`
	// Limit is the size of a page: 1 to 1,000, or 0 for 100.
	Limit int `json:"limit,omitempty"`
	// Kind and Identity, together, select one actor.
	Kind     string `json:"kind,omitempty"`
	Identity string `json:"identity,omitempty"`
}

// A Snapshot is the state of placement as a daemon sees it.
type Snapshot struct {
	State            string             `json:"state"`     // stopped, not_ready, client or member
	Authority        string             `json:"authority"` // its own host:port; empty for a client
	Members          []Member           `json:"members"`
	Kinds            []string           `json:"kinds"`       // registered by processes of this host
	Activations      []ActivationStatus `json:"activations"` // of this host, by kind and identity
	ActivationsTotal int                `json:"activations_total"`
	IgnoredResults   uint64             `json:"ignored_results"` // results that arrived too late
	Key              *Key               `json:"key,omitempty"`   // of the query's actor
}

// A Member is a daemon that actors can belong to.
type Member struct {
	Authority string   `json:"authority"`
	Token     int64    `json:"token"` // of its membership
	Kinds     []string `json:"kinds"` // of actors that can belong to it: its processes have registered for them
}

// ActivationStatus is an activation of the daemon's host.
type ActivationStatus struct {
	Kind     string `json:"kind"`
	Identity string `json:"identity"`
	Doing    string `json:"doing"`  // resting, or the action under way
	Active   bool   `json:"active"` // a process runs it
	PID      string `json:"pid"`
	Version  int64  `json:"version"`
	Token    int64  `json:"token"`
	IdleMS   int64  `json:"idle_ms"` // since it was last resolved
}

// Key describes one actor, active or not.
type Key struct {
	Authority string  `json:"authority"`
	Locality  string  `json:"locality"`
	Record    *Record `json:"record"` // the stored record, or nil
}

// Record is the stored record of an activation, shared by all hosts.
type Record struct {
	Owner      string `json:"owner"` // authority; empty: the activation has ended
	PID        string `json:"pid"`
	Version    int64  `json:"version"`
	Token      int64  `json:"token"`
	ObservedMS int64  `json:"observed_ms"` // when the owner decided, Unix ms by its clock
}

// Snapshot asks the daemon for the state of placement. It activates nothing.
func (p *Placement) Snapshot(ctx context.Context, q Query) (s Snapshot, err error) {
	err = p.client.Call(ctx, "Placement.Snapshot", &s, q)
	return s, typed(err)
}

// An Event is an event of an actor that the daemon has seen.
type Event struct {
	Event      string `json:"event"` // resolved, lock_denied, activated, activation_failed, passivated, unserved, pid_cached or pid_dropped
	Kind       string `json:"kind"`
	Identity   string `json:"identity"`
	Authority  string `json:"authority"`
	PID        string `json:"pid"`
	Version    int64  `json:"version"`
	Token      int64  `json:"token"`
	Reason     string `json:"reason"`
	ObservedMS int64  `json:"observed_ms"` // Unix ms
}

// notice is an event, or the daemon's notice that there are no more.
type notice struct {
	Event
	ended error
}

// Events subscribes to the events of actors from now on: to those with the names
// or, without names, to all but "resolved", which comes for each Resolve. It has a
// connection of its own, until the iteration ends or ctx is done. The result is an
// iter.Seq2[Event, error].
//
// The iteration ends with an error: the context's, or a *WatchEndedError. Some events may be
// missing then: to go on, subscribe again and then read the Snapshot.
func (p *Placement) Events(ctx context.Context, names ...string) (func(yield func(Event, error) bool), error) {
	notices := make(chan notice, eventsAhead)
	told := func(conn *twoway.Conn, m *twoway.Message) {
		if n, ok := noticeOf(m); ok {
			select {
			case notices <- n:
			case <-conn.Done():
			}
		}
	}
	options := map[string]any{}
	if len(names) > 0 {
		options["events"] = names
	}
	conn, err := p.open(ctx, told, "Placement.Watch", nil, options)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	return func(yield func(Event, error) bool) {
		defer conn.Close()
		defer stop()
		for {
			n := nextNotice(conn, notices)
			if err := ctx.Err(); err != nil {
				n = notice{ended: fmt.Errorf("kazahana: Events: %w", err)}
			}
			if !yield(n.Event, n.ended) || n.ended != nil {
				return
			}
		}
	}, nil
}

// open returns a connection over which a first call has succeeded.
func (p *Placement) open(ctx context.Context, told func(*twoway.Conn, *twoway.Message), method string, result any, params ...any) (conn *twoway.Conn, err error) {
	err = p.client.Open(ctx, p.client.Timeout(), func(ctx context.Context, nc net.Conn) error {
		conn = twoway.New(nc, told)
		err := conn.Call(ctx, method, result, params...)
		if err != nil {
			_ = conn.Close()
		}
		return err
	})
	return conn, typed(err)
}

func noticeOf(m *twoway.Message) (n notice, ok bool) {
	switch m.Method {
	case "Placement.Event":
		return n, m.Decode(&n.Event) == nil
	case "Placement.WatchEnded":
		_ = m.Decode(&n.Event) // its reason
		return notice{ended: &WatchEndedError{Reason: n.Reason}}, true
	}
	return n, false
}

// nextNotice waits for the next notice; the end of the connection comes last.
func nextNotice(conn *twoway.Conn, notices <-chan notice) notice {
	select {
	case n := <-notices:
		return n
	case <-conn.Done():
	}
	select {
	case n := <-notices:
		return n
	default:
		return notice{ended: &WatchEndedError{"disconnected", conn.Err()}}
	}
}
