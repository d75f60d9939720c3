package threads

import (
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
		for _, id := range all() {
			if id != first {
				lowered = change(id, func(a *unix.SchedAttr) { a.Nice = max(a.Nice, others) }) || lowered
			}
		}
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

// all are the threads of this process.
func all() (ids []int) {
	entries, _ := os.ReadDir("/proc/self/task")
	for _, e := range entries {
		if id, err := strconv.Atoi(e.Name()); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}
