package driver

import (
	"sync"

	"github.com/kazahana/kazahana/internal/placement"
)

// maxBehind is how many events a subscriber may be behind.
const maxBehind = 4096

// feed hands events to subscribers, in their order.
type feed struct {
	mu     sync.Mutex
	subs   map[*Subscription]struct{}
	closed bool
}

// Subscription gets the events of a driver.
type Subscription struct {
	Events <-chan placement.Event // closed by Close, at the driver's end, and where the subscriber is too slow
	events chan placement.Event
	feed   *feed
}

// Subscribe begins with the next event.
func (d *Driver) Subscribe() *Subscription {
	events := make(chan placement.Event, maxBehind)
	s := &Subscription{events, events, &d.feed}
	d.feed.mu.Lock()
	defer d.feed.mu.Unlock()
	if d.feed.closed {
		close(events)
		return s
	}
	if d.feed.subs == nil {
		d.feed.subs = map[*Subscription]struct{}{}
	}
	d.feed.subs[s] = struct{}{}
	return s
}

// Close ends it.
func (s *Subscription) Close() {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.feed.end(s)
}

func (f *feed) end(s *Subscription) {
	if _, ok := f.subs[s]; ok {
		delete(f.subs, s)
		close(s.events)
	}
}

func (f *feed) publish(events []placement.Event) {
	if len(events) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.subs {
		for _, e := range events {
			select {
			case s.events <- e:
				continue
			default:
			}
			f.end(s) // told to nobody what would have a gap
			break
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
