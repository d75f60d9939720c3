package threads

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// own is the length of the calling thread's slices.
func own(t *testing.T) time.Duration {
	t.Helper()
	attr, err := unix.SchedGetAttr(0, 0)
	must.Succeed(t, err)
	return time.Duration(attr.Runtime)
}

// The length is the calling thread's until it asks for another.
func TestSlice(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	usual(t)
	before := own(t)
	if before == 0 {
		t.Skip("Linux before 6.12 has no slices of a chosen length")
	}
	for _, length := range []time.Duration{Short, 2 * Short} {
		if Slice(length); own(t) != length || !HasSlice(length) || HasSlice(length+1) {
			t.Errorf("asked for %s, and have %s", length, own(t))
		}
	}
	if Slice(0); own(t) != before {
		t.Errorf("the system's own choice is %s, and was %s", own(t), before)
	}
}

// usual is the nice value of the test's threads. Without the right to lower them, the test is
// skipped.
func usual(t *testing.T) int32 {
	t.Helper()
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil || a.Policy != unix.SCHED_NORMAL || a.Nice == 19 {
		t.Skipf("no nice values here: %v", err)
	}
	if err := unix.SchedSetAttr(0, a, 0); err != nil {
		t.Skipf("sched_setattr: %v", err)
	}
	return a.Nice
}

// AddProcessor counts from the present number of processors, even if others change it meanwhile.
func TestAddProcessor(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	first, second := AddProcessor(), AddProcessor()
	first()
	first()
	if n := runtime.GOMAXPROCS(0); n != before+1 {
		t.Errorf("%d processors instead of %d", n, before+1)
	}
	if second(); runtime.GOMAXPROCS(0) != before {
		t.Errorf("afterwards there are %d processors", runtime.GOMAXPROCS(0))
	}
}
