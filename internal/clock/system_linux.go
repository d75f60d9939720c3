package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

const suspendAwareClock = unix.CLOCK_BOOTTIME

var started = time.Now()

// Monotonic implements Monotonic. Linux slews CLOCK_MONOTONIC together with
// the wall clock, so that only a step changes the distance between the two.
func (System) Monotonic() time.Duration { return time.Since(started) }
