package testkit

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Patience is how long anything may take on a machine that is busy with other
	// things. Only a test that fails waits for so long.
	Patience = 2 * time.Minute
	// PollInterval is the time from one look at a condition to the next.
	PollInterval = 5 * time.Millisecond
)

// Eventually waits until ok reports true.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !ok(); time.Sleep(PollInterval) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}

// Pause lets the storm go on for a while.
func Pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// Monotonic is a clock that nobody sets, in nanoseconds.
func Monotonic() (uint64, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return uint64(ts.Nano()), err
}
