package clock

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Source reads the machine's clocks.
type Source interface {
	// Wall is the wall clock in Unix nanoseconds. It may be set at any time.
	Wall() int64
	// Boot is the time since some fixed point, suspend included. It never goes back
	// and cannot be set.
	Boot() time.Duration
}

// Monotonic is a Source with a third clock, which is cheap to read. It runs at the
// wall clock's speed, does not follow when that is set, and may stand still while the
// machine is suspended.
type Monotonic interface {
	Source
	Monotonic() time.Duration
}

// lookEvery is how long the monotonic clock stands in for the wall clock, and so how
// late a step of the wall clock is seen. Reading both takes twice as long.
const lookEvery = 100 * time.Microsecond

// Config of a Believed clock.
type Config struct {
	MaxForward time.Duration // how far from its course the wall clock is still believed
	Hold       time.Duration // how long it must stay off its course to be believed again; 0 = not at all
	FloorMS    int64         // Unix ms that has certainly passed
	OnEvent    func(Event)   // called at every Event by the goroutine that asked for the time: must return at once
}

// EventKind is the kind of an Event.
type EventKind uint8

// The kinds of events.
const (
	ForwardDisbelieved EventKind = iota + 1 // the wall clock jumped ahead and is not believed
	ForwardAccepted                         // the difference lasted: believed from now on
	ForwardConfirmed                        // a provider's clock agrees with the wall clock
	ForwardReturned                         // the wall clock came back by itself
	BackwardSeen                            // the wall clock jumped back
	BackwardAccepted                        // it stayed there: this is its course now
	BackwardReturned                        // it came back by itself
)

// Event is a change in whether the wall clock is believed.
type Event struct {
	Kind EventKind
	Diff time.Duration // wall clock minus course; positive = ahead
}

// Believed is the clock of the whole daemon. It is safe for concurrent use.
type Believed struct {
	src Source
	cfg Config

	mono Monotonic // or nil

	// While mono is below until, the time is mono plus ahead: the wall clock was
	// read a moment ago, and believed. Only follow sets them, ahead first; a reader
	// that loads until first therefore has an ahead that was believed. While the
	// wall clock is astray, until has passed and every reading is judged.
	until, ahead atomic.Int64

	mu       sync.Mutex
	lookedAt int64         // when mono and the wall clock were last read together, by mono
	distance int64         // wall clock minus mono at that time
	known    bool          // whether a course exists
	wall     int64         // the course: this wall reading
	boot     time.Duration // was right at this moment
	astray   EventKind     // ForwardDisbelieved, BackwardSeen, or 0 while on course
	since    time.Duration // Boot when it went astray
}

// NewBelieved returns a clock that believes src as far as cfg says.
func NewBelieved(src Source, cfg Config) *Believed {
	b := &Believed{src: src, cfg: cfg, distance: math.MinInt64} // unknown: below any bound
	b.mono, _ = src.(Monotonic)
	return b
}

// NowNS is the believed time in Unix nanoseconds.
func (b *Believed) NowNS() int64 {
	if b.mono != nil {
		if now := int64(b.mono.Monotonic()); now < b.until.Load() {
			return now + b.ahead.Load()
		}
	}
	return b.judge()
}

// NowMS is the believed time in Unix milliseconds.
func (b *Believed) NowMS() int64 { return b.NowNS() / int64(time.Millisecond) }

// Elapsed is the time since some fixed point by Boot, for intervals.
func (b *Believed) Elapsed() time.Duration { return b.src.Boot() }

// judge takes a reading of both clocks and decides what time it is.
func (b *Believed) judge() int64 {
	b.mu.Lock()
	// Read under the lock, so that readings are judged in their order.
	boot := b.src.Boot()
	now, event := b.decide(b.readWall(), boot)
	b.mu.Unlock()
	b.tell(event)
	return now
}

// readWall reads the wall clock, as the monotonic clock plus the known distance
// between the two. The wall clock is read somewhere between before and after, which
// gives bounds of the present distance. The known distance stays while it is within
// them: so noise does not move the time back, and in all the time goes back by no more
// than the wall clock did.
func (b *Believed) readWall() int64 {
	if b.mono == nil {
		return b.src.Wall()
	}
	before := int64(b.mono.Monotonic())
	wall := b.src.Wall()
	after := int64(b.mono.Monotonic())
	b.distance = min(max(b.distance, wall-after), wall-before)
	b.lookedAt = after
	return after + b.distance
}

func (b *Believed) decide(wall int64, boot time.Duration) (now int64, event Event) {
	if !b.known {
		if wall >= b.cfg.FloorMS*int64(time.Millisecond) {
			b.follow(wall, boot)
		}
		return wall, Event{}
	}
	course := b.wall + int64(boot-b.boot)
	diff := time.Duration(wall - course)
	switch {
	case diff > b.cfg.MaxForward:
		if kind := b.strayed(ForwardDisbelieved, ForwardAccepted, boot); kind != ForwardAccepted {
			return course, Event{kind, diff}
		}
		b.follow(wall, boot)
		return wall, Event{ForwardAccepted, diff}
	case diff < -b.cfg.MaxForward:
		kind := b.strayed(BackwardSeen, BackwardAccepted, boot)
		if kind == BackwardAccepted {
			b.follow(wall, boot)
		}
		return wall, Event{kind, diff}
	}
	switch b.astray {
	case ForwardDisbelieved:
		event = Event{ForwardReturned, diff}
	case BackwardSeen:
		event = Event{BackwardReturned, diff}
	}
	b.follow(wall, boot)
	return wall, event
}

// strayed notes that the wall clock is off its course. It returns seen the first time,
// accepted once that has lasted, and 0 otherwise.
func (b *Believed) strayed(seen, accepted EventKind, boot time.Duration) EventKind {
	news := b.astray != seen
	if news {
		b.astray, b.since = seen, boot
	}
	switch {
	case boot-b.since >= b.cfg.Hold:
		return accepted
	case news:
		return seen
	}
	return 0
}

// follow makes the reading the course.
func (b *Believed) follow(wall int64, boot time.Duration) {
	b.known, b.wall, b.boot, b.astray = true, wall, boot, 0
	if b.mono != nil {
		b.ahead.Store(b.distance)
		b.until.Store(b.lookedAt + int64(lookEvery))
	}
}

// Confirm passes the present reading of a provider's own clock. A wall clock that is
// ahead of its course and agrees with the provider is believed at once.
func (b *Believed) Confirm(providerMS int64) {
	b.mu.Lock()
	var event Event
	if b.astray == ForwardDisbelieved {
		boot := b.src.Boot()
		wall := b.readWall()
		off := time.Duration(wall - providerMS*int64(time.Millisecond))
		if off.Abs() <= b.cfg.MaxForward {
			event = Event{ForwardConfirmed, time.Duration(wall - b.wall - int64(boot-b.boot))}
			b.follow(wall, boot)
		}
	}
	b.mu.Unlock()
	b.tell(event)
}

// Astray reports how far the wall clock is off its course while it is not believed or
// has gone back, else 0.
func (b *Believed) Astray() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.astray == 0 {
		return 0
	}
	boot := b.src.Boot()
	return time.Duration(b.readWall() - b.wall - int64(boot-b.boot))
}

func (b *Believed) tell(event Event) {
	if event.Kind != 0 && b.cfg.OnEvent != nil {
		b.cfg.OnEvent(event)
	}
}
