package threads

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// attributes guards changes: each writes back what it has read.
var attributes sync.Mutex

func slice(length time.Duration) {
	attributes.Lock()
	defer attributes.Unlock()
	change(0, func(a *unix.SchedAttr) { a.Runtime = uint64(length) })
}

func hasSlice(length time.Duration) bool {
	a, err := unix.SchedGetAttr(0, 0)
	return err == nil && a.Runtime == uint64(length)
}

var (
	kept    = map[int]bool{} // threads; guarded by attributes
	asked   bool             // LowerOthers was called; guarded by attributes
	lowered atomic.Bool      // it has had its effect
)

func keep() {
	attributes.Lock()
	defer attributes.Unlock()
	kept[unix.Gettid()] = true
	if asked {
		lowerOnce()
	}
}

const (
	// nicest is the least priority that there is.
	nicest = 19
	// passes are enough: a thread that is not lowered yet may start another one meanwhile.
	passes = 8
)

func lowerOthers() {
	if lowered.Load() {
		return
	}
	attributes.Lock()
	defer attributes.Unlock()
	asked = true
	lowerOnce()
}

// lowerOnce lowers all threads that are not kept, once there are as many as are to be kept.
// attributes is held.
func lowerOnce() {
	if len(kept) >= int(toKeep.Load()) && lowered.CompareAndSwap(false, true) {
		lower()
	}
}

// lower lowers all threads that are not kept. attributes is held.
func lower() {
	own, err := unix.SchedGetAttr(0, 0)
	if err != nil || own.Policy != unix.SCHED_NORMAL {
		return
	}
	others := min(own.Nice+behind, nicest)
	for range passes {
		again := false
		_ = Each(func(thread int) error { // without /proc none is lowered
			if !kept[thread] {
				again = change(thread, func(a *unix.SchedAttr) { a.Nice = max(a.Nice, others) }) || again
			}
			return nil
		})
		if !again {
			return
		}
	}
}

// change changes how the thread is scheduled, 0 being the calling one. It reports whether
// that differs from before. attributes is held.
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
