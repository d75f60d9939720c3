package threads

import (
	"bytes"
	"os"
	"os/exec"
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
func TestSlice(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := own(t)
	if before == 0 {
		t.Skip("Linux before 6.12, or a policy without slices of a chosen length")
	}
	for _, length := range []time.Duration{Short, Long} {
		if Slice(length); own(t) != length {
			t.Errorf("asked for %s, and have %s", length, own(t))
		}
	}
	if Slice(Normal); own(t) != before {
		t.Errorf("the system's own choice is %s, and was %s", own(t), before)
	}
}

// alone is set in a process of its own: its threads stay lower.
const alone = "KZTEST_THREADS_ALONE"

// The thread that goes first keeps its priority, and all others have a lower one, those that
// begin later as well. A second thread that would go first does not.
func TestGoFirst(t *testing.T) {
	if os.Getenv(alone) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestGoFirst$", "-test.v")
		cmd.Env = append(os.Environ(), alone+"=1")
		out, err := cmd.CombinedOutput()
		if bytes.Contains(out, []byte("--- SKIP")) {
			t.Skipf("%s", out)
		}
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	before := nice(t, 0)
	began := make(chan int)
	thread := func(do func()) int {
		go func() {
			runtime.LockOSThread()
			do()
			began <- unix.Gettid()
			select {}
		}()
		return <-began
	}
	first, second := thread(GoFirst), thread(GoFirst)
	for range 4 {
		thread(func() {})
	}
	if n := nice(t, first); n != before {
		t.Errorf("the thread that goes first has nice %d, and had %d", n, before)
	}
	lower := func(id int) error {
		if n := nice(t, id); n != min(before+behind, nicest) && id != first {
			t.Errorf("thread %d has nice %d beside one with %d", id, n, before)
		}
		return nil
	}
	_ = lower(second)
	if err := Each(lower); err != nil {
		t.Error(err)
	}
}

func nice(t *testing.T, thread int) int32 {
	t.Helper()
	a, err := unix.SchedGetAttr(thread, 0)
	if err != nil || a.Policy != unix.SCHED_NORMAL {
		t.Skipf("no nice values here: %v", err)
	}
	return a.Nice
}
