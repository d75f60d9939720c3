package systemd

import (
	"context"
	"fmt"
	"time"
)

const (
	// feedsPerInterval is how often the watchdog is fed in its interval.
	feedsPerInterval = 4
	// maxTick is the longest time between two checks.
	maxTick = time.Second
	// turnPause is the time between two looks at a part that was prodded.
	turnPause = 5 * time.Millisecond
)

// Part is a loop that must run for the process to be of use.
type Part struct {
	Name     string
	Turns    func() uint64 // grows while the part runs
	Prod     func()        // asks for a turn soon; nil = the part takes turns by itself
	Patience time.Duration // how long it may take no turn; 0 = half the watchdog's interval
}

// Progress checks that the parts run. It is for one goroutine.
type Progress struct {
	parts []Part
	tick  time.Duration
	state []silence
	last  time.Time
}

type silence struct {
	turns uint64
	lasts time.Duration // since the last turn, as far as checks have observed it
}

// NewProgress starts the checks. interval is the watchdog's.
func NewProgress(interval time.Duration, parts []Part, now time.Time) *Progress {
	p := &Progress{parts: parts, tick: Tick(interval), state: make([]silence, len(parts)), last: now}
	for i := range p.parts {
		if p.parts[i].Patience == 0 {
			p.parts[i].Patience = interval / 2
		}
		p.state[i].turns = parts[i].Turns()
	}
	p.prod()
	return p
}

// Tick is the time between two calls of Check.
func Tick(interval time.Duration) time.Duration { return min(interval/feedsPerInterval, maxTick) }

// Check returns the names of the parts that have taken no turn for longer than their
// patience, and prods all parts.
func (p *Progress) Check(now time.Time) (stuck []string) {
	// Time without checks, as while the process was stopped, does not count.
	passed := min(now.Sub(p.last), 2*p.tick)
	p.last = now
	for i, part := range p.parts {
		s := &p.state[i]
		if turns := part.Turns(); turns != s.turns {
			*s = silence{turns: turns}
			continue
		}
		if s.lasts += passed; s.lasts > part.Patience {
			stuck = append(stuck, part.Name)
		}
	}
	p.prod()
	return stuck
}

func (p *Progress) prod() {
	for _, part := range p.parts {
		if part.Prod != nil {
			part.Prod()
		}
	}
}

// Alive prods the parts once, and returns an error with the name of a part that has taken no turn
// when ctx is done. It is for probes, where no watchdog is.
func Alive(ctx context.Context, parts []Part) error {
	p := NewProgress(0, parts, time.Now())
	for i, part := range parts {
		for part.Turns() == p.state[i].turns {
			select {
			case <-ctx.Done():
				return fmt.Errorf("the %s has stopped working", part.Name)
			case <-time.After(turnPause):
			}
		}
	}
	return nil
}
