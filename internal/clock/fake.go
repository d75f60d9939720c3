package clock

import (
	"sync"
	"time"
)

// Fake is a Source that tests move by hand.
type Fake struct {
	mu   sync.Mutex
	wall int64
	boot time.Duration
}

// NewFake returns a clock that shows the Unix millisecond and stands still.
func NewFake(unixMS int64) *Fake { return &Fake{wall: unixMS * int64(time.Millisecond)} }

// Wall implements Source.
func (f *Fake) Wall() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wall
}

// Boot implements Source.
func (f *Fake) Boot() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.boot
}

// Advance lets time pass on both clocks, as it does awake or suspended.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wall += int64(d)
	f.boot += d
}

// Jump sets the wall clock by d, while no time passes.
func (f *Fake) Jump(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wall += int64(d)
}
