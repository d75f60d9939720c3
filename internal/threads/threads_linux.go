package threads

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

func slice(length time.Duration) {
	change(0, func(a *unix.SchedAttr) { a.Runtime = uint64(length) })
}

var once sync.Once

func goFirst() { once.Do(lowerOthers) }

// nicest is the least priority that there is.
const nicest = 19

func lowerOthers() {
	first := unix.Gettid()
	own, err := unix.SchedGetAttr(first, 0)
	if err != nil || own.Policy != unix.SCHED_NORMAL {
		return
	}
	others := min(own.Nice+behind, nicest)
	// A thread that is not lowered yet may start another one meanwhile.
	for lowered := true; lowered; {
		lowered = false
		_ = Each(func(thread int) error { // without /proc none is lowered
			if thread != first {
				lowered = change(thread, func(a *unix.SchedAttr) { a.Nice = max(a.Nice, others) }) || lowered
			}
			return nil
		})
	}
}

// change changes how the thread is scheduled, 0 being the calling one. It reports whether
// that differs from before.
func change(thread int, by func(*unix.SchedAttr)) bool {
	a, err := unix.SchedGetAttr(thread, 0)
	if err != nil || a.Policy != unix.SCHED_NORMAL {
		return false
	}
	before := *a
	by(a)
	return *a != before && unix.SchedSetAttr(thread, a, 0) == nil
}

// Each calls do for each thread of this process. Threads that come later inherit from the one
// that starts them. A thread that has ended meanwhile is no error.
func Each(do func(thread int) error) error {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, e := range entries {
		thread, err := strconv.Atoi(e.Name())
		if err != nil {
			return err
		}
		if err := do(thread); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
