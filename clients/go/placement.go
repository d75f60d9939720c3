package kazahana

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/kazahana/kazahana/internal/wire"
)

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
	// The fields below are set for local actors only.
	PID        string `json:"pid"`         // the process's name for it
	Version    int64  `json:"version"`     // number of the activation, from 1 on
	Token      int64  `json:"token"`       // fencing token of the activation
	ObservedMS int64  `json:"observed_ms"` // when it was decided, Unix ms
}

// IsLocal reports whether the actor lives on this host.
func (r Resolution) IsLocal() bool { return r.Locality == "local" }

type resolveOptions struct {
	WaitMS int64 `json:"wait_ms"`
}

// Resolve returns where the actor of a kind and an identity lives. If that is this host and
// the actor is not active, Resolve activates it. WithWait limits the wait for that, in
// addition to the Client's timeout.
//
// The error is a *PlacementPendingError or a *LockHeldError when the wait is over,
// an *ActivationFailedError, a *PlacementNotReadyError, or an ErrPlacementUnserved if no
// process of any host has registered for the kind.
func (c *Client) Resolve(ctx context.Context, kind, identity string, opts ...CallOption) (r Resolution, err error) {
	wait := c.options(opts).wait
	if wait < 0 || wait > MaxResolveWait {
		return r, invalid(ErrInvalidParams, "a wait of %v: must be 0 to %v", wait, MaxResolveWait)
	}
	began := time.Now()
	err = c.call(ctx, wait+c.timeout, request{"Placement.Resolve", []any{kind, identity}, func(left time.Duration) any {
		left = min(left-min(left/marginPart, maxMargin), wait-time.Since(began))
		return resolveOptions{max(left, 0).Milliseconds()}
	}}, &r)
	if err == nil && r.Authority == "" {
		err = incomplete("Placement.Resolve", "authority")
	}
	return r, err
}

// PlacementQuery selects a part of a daemon's placement. The zero value selects the first
// activations.
type PlacementQuery struct {
	// After is the "kind/identity" of the last activation of the previous page.
	After string `json:"after,omitempty"`
	// Limit is the size of a page: 1 to 1,000, or 0 for 100.
	Limit int `json:"limit,omitempty"`
	// Kind and Identity, together, select one actor.
	Kind     string `json:"kind,omitempty"`
	Identity string `json:"identity,omitempty"`
}

// A PlacementSnapshot is the state of placement as a daemon sees it.
type PlacementSnapshot struct {
	State            string             `json:"state"`     // stopped, not_ready, client or member
	Authority        string             `json:"authority"` // its own host:port; empty for a client
	Members          []PlacementMember  `json:"members"`
	Kinds            []string           `json:"kinds"`       // registered by processes of this host
	Activations      []ActivationStatus `json:"activations"` // of this host, by kind and identity
	ActivationsTotal int                `json:"activations_total"`
	IgnoredResults   uint64             `json:"ignored_results"` // results that arrived too late
	Key              *PlacementKey      `json:"key,omitempty"`   // of the query's actor
}

// A PlacementMember is a daemon that actors can belong to.
type PlacementMember struct {
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

// PlacementKey describes one actor, active or not.
type PlacementKey struct {
	Authority string           `json:"authority"`
	Locality  string           `json:"locality"`
	Record    *PlacementRecord `json:"record"` // the stored record, or nil
}

// PlacementRecord is the stored record of an activation, shared by all hosts.
type PlacementRecord struct {
	Owner      string `json:"owner"` // authority; empty: the activation has ended
	PID        string `json:"pid"`
	Version    int64  `json:"version"`
	Token      int64  `json:"token"`
	ObservedMS int64  `json:"observed_ms"` // when the owner decided, Unix ms by its clock
}

// PlacementSnapshot asks the daemon for the state of placement. It activates nothing.
func (c *Client) PlacementSnapshot(ctx context.Context, q PlacementQuery) (s PlacementSnapshot, err error) {
	err = c.call(ctx, c.timeout, request{method: "Placement.Snapshot", params: []any{q}}, &s)
	return s, err
}

// A PlacementEvent is an event of an actor that the daemon has seen.
type PlacementEvent struct {
	Event      string `json:"event"` // resolved, lock_denied, activated, activation_failed, passivated or unserved
	Kind       string `json:"kind"`
	Identity   string `json:"identity"`
	Authority  string `json:"authority"`
	PID        string `json:"pid"`
	Version    int64  `json:"version"`
	Token      int64  `json:"token"`
	Reason     string `json:"reason"`
	ObservedMS int64  `json:"observed_ms"` // Unix ms
}

// placementNotice is an event, or the daemon's notice that there are no more.
type placementNotice struct {
	PlacementEvent
	ended error
}

// PlacementEvents subscribes to the events of actors from now on: to those with the names
// or, without names, to all but "resolved", which comes for each Resolve. It has a
// connection of its own, until the iteration ends or ctx is done.
//
// The iteration ends with an error: that of ctx, or a *WatchEndedError. Some events may be
// missing then: to go on, subscribe again and then read the PlacementSnapshot.
func (c *Client) PlacementEvents(ctx context.Context, names ...string) (iter.Seq2[PlacementEvent, error], error) {
	notices := make(chan placementNotice, eventsAhead)
	own := newChannel(c.dial, c.single, func(conn *wire.Client, q *wire.Request) {
		if n, ok := placementNoticeOf(q); ok {
			select {
			case notices <- n:
			case <-conn.Done():
			}
		}
	})
	options := map[string]any{}
	if len(names) > 0 {
		options["events"] = names
	}
	var conn *wire.Client
	err := own.do(ctx, c.timeout, "PlacementEvents", func(ctx context.Context, one *wire.Client) error {
		conn = one
		return conn.Call(ctx, "Placement.Watch", nil, options)
	})
	if err != nil {
		own.close()
		return nil, err
	}
	stop := context.AfterFunc(ctx, own.close)
	return func(yield func(PlacementEvent, error) bool) {
		defer own.close()
		defer stop()
		for {
			n := nextNotice(own, conn, notices)
			if err := ctx.Err(); err != nil {
				n = placementNotice{ended: fmt.Errorf("kazahana: PlacementEvents: %w", err)}
			}
			if !yield(n.PlacementEvent, n.ended) || n.ended != nil {
				return
			}
		}
	}, nil
}

func placementNoticeOf(q *wire.Request) (n placementNotice, ok bool) {
	switch string(q.Method) {
	case "Placement.Event":
		return n, q.Decode(&n.PlacementEvent) == nil
	case "Placement.WatchEnded":
		_ = q.Decode(&n.PlacementEvent) // its reason
		return placementNotice{ended: &WatchEndedError{Reason: n.Reason}}, true
	}
	return n, false
}

// nextNotice waits for the next notice; the end of the connection comes last.
func nextNotice(own *channel, conn *wire.Client, notices <-chan placementNotice) placementNotice {
	select {
	case n := <-notices:
		return n
	case <-conn.Done():
	}
	select {
	case n := <-notices:
		return n
	default:
		_, err := own.judge(own.ctx, conn, conn.Err())
		return placementNotice{ended: &WatchEndedError{"disconnected", err}}
	}
}
