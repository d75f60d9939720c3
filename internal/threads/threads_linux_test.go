package threads

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"slices"
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

// alone is set in a process of its own: its threads stay lower.
const alone = "KZTEST_THREADS_ALONE"

// Threads that are kept have the priority that they had, and all others a lower one, those that
// begin later as well, once all have called that are to be kept. Without UsePriorities nothing
// changes. The first call with an effect is the last.
func TestLowerOthers(t *testing.T) {
	before := usual(t)
	if os.Getenv(alone) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLowerOthers$", "-test.v")
		cmd.Env = append(os.Environ(), alone+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS")) {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
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
	keepAndLower := func() {
		Keep()
		LowerOthers()
	}
	unkept := thread(keepAndLower)
	UsePriorities(3)
	first := []int{thread(keepAndLower), thread(Keep), thread(Keep)}
	late := thread(keepAndLower)
	for range 4 {
		thread(func() {})
	}
	all := map[int]int32{}
	if err := Each(func(id int) error {
		a, err := unix.SchedGetAttr(id, 0)
		if err == nil {
			all[id] = a.Nice
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	lower := min(before+behind, nicest)
	for id, nice := range all {
		want := lower
		if slices.Contains(first, id) {
			want = before
		}
		if nice != want {
			t.Errorf("thread %d has nice %d instead of %d; %v are kept", id, nice, want, first)
		}
	}
	for _, id := range append(first, unkept, late) {
		if _, ok := all[id]; !ok {
			t.Errorf("thread %d was not looked at", id)
		}
	}
}

// usual is the nice value of the test's threads. Without the right to lower them, the test is
// skipped.
func usual(t *testing.T) int32 {
	t.Helper()
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil || a.Policy != unix.SCHED_NORMAL || a.Nice == nicest {
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
