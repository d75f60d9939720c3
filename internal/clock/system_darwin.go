package clock

import "golang.org/x/sys/unix"

// Darwin's CLOCK_MONOTONIC goes on while the machine sleeps.
const suspendAwareClock = unix.CLOCK_MONOTONIC
