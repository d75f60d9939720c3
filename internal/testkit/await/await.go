// Package await waits in tests for a condition, however slow the machine is.
package await

import (
	"testing"
	"time"
)

const (
	// Patience is how long anything may take on a machine that is busy with other
	// things. Only a test that fails waits for so long.
	Patience = 2 * time.Minute
	// Interval is the time from one look at a condition to the next.
	Interval = 5 * time.Millisecond
)

// Eventually returns when ok reports true.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !ok(); time.Sleep(Interval) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}

// Success returns when try returns no error.
func Success(t testing.TB, what string, try func() error) {
	t.Helper()
	for deadline := time.Now().Add(Patience); ; time.Sleep(Interval) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s: %v", Patience, what, err)
		}
	}
}
