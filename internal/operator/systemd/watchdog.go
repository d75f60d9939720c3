package systemd

import (
	"time"
)

const (
	// feedsPerInterval is how often the watchdog is fed in its interval.
	feedsPerInterval = 4
	// maxTick is how often the parts are looked at, at least.
	maxTick = time.Second
)

// Part is something of the process that has to go on.
type Part struct {
	Name     string
	Turns    func() uint64 // grows while the part goes on
	Prod     func()        // has it take a turn soon; nil = it takes some by itself
	Patience time.Duration // how long it may take none; 0 = half the watchdog's interval
}

// Progress judges whether the parts go on. It is for one goroutine.
type Progress struct {
	parts []Part
	tick  time.Duration
	state []silence
	last  time.Time
}

type silence struct {
	turns uint64
	lasts time.Duration // since turns changed, in time that checks account for
}

// NewProgress returns what Check keeps. interval is the watchdog's.
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

// Tick is how often Check is due.
func Tick(interval time.Duration) time.Duration { return min(interval/feedsPerInterval, maxTick) }

// Check returns the names of the parts that have been silent for longer than
// they may be, and prods all.
func (p *Progress) Check(now time.Time) (stuck []string) {
	// What passed while nobody checked is nobody's silence.
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
