package driver

import (
	"sync"

	"github.com/kazahana/kazahana/internal/placement"
)

const (
	// maxBehind is how many events a subscriber may be behind.
	maxBehind = 4096
	// MaxSubscribers is how many there may be: each costs up to 640 KiB, and the driver time.
	MaxSubscribers = 16
)

// feed hands events to subscribers, in their order.
type feed struct {
	mu     sync.Mutex
	subs   map[*Subscription]struct{}
	byKind map[placement.EventKind]map[*Subscription]struct{} // their subscribers
	closed bool
}

// Subscription gets the events of a driver.
type Subscription struct {
	Events <-chan placement.Event // closed by Close, at the driver's end, and where the subscriber is too slow
	events chan placement.Event
	feed   *feed
}

// Subscribe begins with the next event of one of the kinds.
//
// Errors: *OverloadedError: there are too many subscribers.
func (d *Driver) Subscribe(kinds []placement.EventKind) (*Subscription, error) {
	d.feed.mu.Lock()
	defer d.feed.mu.Unlock()
	if len(d.feed.subs) >= MaxSubscribers {
		return nil, &OverloadedError{Limit: MaxSubscribers, Watches: true}
	}
	events := make(chan placement.Event, maxBehind)
	s := &Subscription{events, events, &d.feed}
	if d.feed.closed {
		close(events)
		return s, nil
	}
	d.feed.begin(s, kinds)
	return s, nil
}

// begin is called with mu held.
func (f *feed) begin(s *Subscription, kinds []placement.EventKind) {
	if f.subs == nil {
		f.subs, f.byKind = map[*Subscription]struct{}{}, map[placement.EventKind]map[*Subscription]struct{}{}
	}
	f.subs[s] = struct{}{}
	for _, kind := range kinds {
		if f.byKind[kind] == nil {
			f.byKind[kind] = map[*Subscription]struct{}{}
		}
		f.byKind[kind][s] = struct{}{}
	}
}

// Close ends it.
func (s *Subscription) Close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.feed.end(s)
}

// end is called with mu held.
func (f *feed) end(s *Subscription) {
	if _, ok := f.subs[s]; !ok {
		return
	}
	delete(f.subs, s)
	for _, subs := range f.byKind {
		delete(subs, s)
	}
	close(s.events)
}

func (f *feed) publish(events []placement.Event) {
	if len(events) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range events {
		for s := range f.byKind[e.Kind] {
			select {
			case s.events <- e:
			default:
				f.end(s) // rather than leave a gap
			}
		}
	}
}

func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for s := range f.subs {
		f.end(s)
	}
}
