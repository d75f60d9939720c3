package testkit

import (
	"testing"
	"time"
)

// Pause lets the storm go on for a while.
func Pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}
