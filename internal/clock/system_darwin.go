package clock

import "golang.org/x/sys/unix"

// Darwin's monotonic clock counts the time the machine sleeps.
func readSuspendAware(ts *unix.Timespec) error { return unix.ClockGettime(unix.CLOCK_MONOTONIC, ts) }
