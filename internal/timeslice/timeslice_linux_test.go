package timeslice

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// own is the length of the calling thread's slices.
func own(t *testing.T) time.Duration {
	t.Helper()
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Skipf("sched_getattr: %v", err)
	}
	if attr.Policy != unix.SCHED_NORMAL {
		return 0
	}
	return time.Duration(attr.Runtime)
}

// The length is the calling thread's until it asks for another.
func TestAsk(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := own(t)
	if before == 0 {
		t.Skip("Linux before 6.12, or a policy without slices of a chosen length")
	}
	for _, length := range []time.Duration{Short, Long} {
		if Ask(length); own(t) != length {
			t.Errorf("asked for %s, and have %s", length, own(t))
		}
	}
	if Ask(Normal); own(t) != before {
		t.Errorf("the system's own choice is %s, and was %s", own(t), before)
	}
}
