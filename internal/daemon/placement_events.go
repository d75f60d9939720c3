package daemon

import (
	"slices"
	"strings"

	"github.com/kazahana/kazahana/internal/placement"
	"github.com/kazahana/kazahana/internal/placement/driver"
	"github.com/kazahana/kazahana/internal/wire"
)

// eventKinds are all that can be watched.
var eventKinds = []placement.EventKind{
	placement.Resolved, placement.LockDenied, placement.Activated, placement.ActivationFailed, placement.Passivated, placement.Unserved,
	placement.PIDCached, placement.PIDDropped,
}

// frequentEvents are sent to those alone who name them: requests to resolve cause them.
var frequentEvents = []placement.EventKind{placement.Resolved, placement.PIDCached, placement.PIDDropped}

// placementEvent is the notice of an event.
type placementEvent struct {
	Event      placement.EventKind `json:"event"`
	Kind       string              `json:"kind"`
	Identity   string              `json:"identity"`
	Authority  string              `json:"authority"`
	PID        string              `json:"pid"`
	Version    int64               `json:"version"`
	Token      int64               `json:"token"`
	Reason     string              `json:"reason"`
	ObservedMS int64               `json:"observed_ms"`
}

// watch is a peer's present one.
type watch struct {
	events *driver.Subscription
	ended  chan struct{} // closed when the peer has been told so
}

func (p *Placement) watch(d *responder) error {
	if d.conn == nil {
		return errHeavy
	}
	c := d.conn
	wanted, err := d.wantedEvents()
	if err != nil {
		return err
	}
	if c.watch != nil {
		return wire.Errorf(wire.CodeInvalidParams, "this connection watches already; another one can")
	}
	events, err := p.driver.Subscribe(wanted)
	if err != nil {
		return err
	}
	w := &watch{events, make(chan struct{})}
	c.watch = w
	if !c.watched {
		c.watched = true
		c.atEnd(c.endWatch)
	}
	err = d.out.ReplyAny(d.req.ID, map[string]any{"authority": p.authority, "state": p.driver.State()})
	go func() { // its first notice comes behind the answer
		defer close(w.ended)
		p.tellEvents(c, events)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.watch = nil // it may begin again
	}()
	return err
}

// endWatch is called at the end of the connection.
func (c *conn) endWatch() {
	c.mu.Lock()
	w := c.watch
	c.mu.Unlock()
	if w != nil {
		w.events.Close()
		<-w.ended
	}
}

// eventNames are all that can be watched, in a line.
func eventNames() string {
	names := make([]string, len(eventKinds))
	for i, kind := range eventKinds {
		names[i] = string(kind)
	}
	return strings.Join(names, ", ")
}

// wantedEvents reads which events the peer wants: all but the frequent ones, unless it
// says so.
func (d *responder) wantedEvents() ([]placement.EventKind, error) {
	wanted := slices.DeleteFunc(slices.Clone(eventKinds), func(k placement.EventKind) bool { return slices.Contains(frequentEvents, k) })
	err := d.eachOption([]string{"events"}, func(string) error {
		n, err := d.req.ArrayLen()
		if err != nil {
			return err
		}
		wanted = wanted[:0]
		for range n {
			name, err := d.text()
			if err != nil {
				return err
			}
			if !slices.Contains(eventKinds, placement.EventKind(name)) {
				return wire.Errorf(wire.CodeInvalidParams, "there is no event %s; there are %s", wire.Excerpt([]byte(name)), eventNames())
			}
			wanted = append(wanted, placement.EventKind(name))
		}
		return nil
	})
	return wanted, err
}

// tellEvents tells the peer of events until there are no more.
func (p *Placement) tellEvents(c *conn, events *driver.Subscription) {
	for e := range events.Events {
		c.notify("Placement.Event", placementEvent{
			e.Kind, e.Key.Kind, e.Key.Identity, e.Authority, e.PID, e.Version, e.Token, e.Reason, e.ObservedMS,
		})
	}
	reason := "too_slow"
	if p.driver.State() == placement.StateStopped {
		reason = "stopping"
	}
	c.notify("Placement.WatchEnded", map[string]any{"reason": reason})
}
