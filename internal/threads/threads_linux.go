package threads

import (
	"sync"
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
