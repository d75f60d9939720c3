package testkit

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Pause lets the storm go on for a while.
func Pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// Monotonic reads a clock that cannot be set, in nanoseconds.
func Monotonic() (uint64, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return uint64(ts.Nano()), err
}
