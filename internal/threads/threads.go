// Package threads tells the system which of this process's threads run first, and for how
// long at a time, and the runtime how many processors (P) it has.
package threads

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Short is the shortest slice that Linux takes (Documentation/scheduler/sched-eevdf.rst). The
// system's own choice was 1.4 ms with two processors.
const Short = 100 * time.Microsecond

// Slice asks for slices of a length for the calling thread, to which the caller has locked its
// goroutine; 0 is the system's choice. The thread gets no more time by it, and no less: with
// short slices it runs soon after each wait. Systems that know of no such thing (Linux before
// 6.12) ignore it, and sandboxes may forbid it: then slices are as long as those of others.
func Slice(length time.Duration) { slice(length) }

// HasSlice reports whether the calling thread has slices of that length.
func HasSlice(length time.Duration) bool { return hasSlice(length) }

// toKeep is how many threads will call Keep; 0: Keep and LowerOthers have no effect.
var toKeep atomic.Int32

// UsePriorities lets Keep and LowerOthers have their effect from now on, once that many threads
// have called Keep. It is for a process whose only work is to serve: the effect is for good.
func UsePriorities(threads int) { toKeep.Store(int32(threads)) }

// behind is by how much LowerOthers raises the nice value (sched(7)). A thread that is lowered
// has a third of the weight of one that is kept.
const behind = 5

// Keep exempts the calling thread from LowerOthers. The caller has locked its goroutine to it.
func Keep() {
	if toKeep.Load() > 0 {
		keep()
	}
}

// LowerOthers lowers the priority of all threads of this process but those that called Keep:
// lowering needs no privilege, and raising does. So while a thread is yet to call Keep, its effect
// waits for that. Threads and processes that begin later are lower as well. Only one call has an effect.
// Where the system forbids it, all threads stay equal.
func LowerOthers() {
	if toKeep.Load() > 0 {
		lowerOthers()
	}
}

// processors guards GOMAXPROCS against changes at the same time.
var processors sync.Mutex

// AddProcessor gives the runtime one processor (P) more, until end. The system shares its own
// processors among the threads as before. From the first call on the runtime follows no change
// of a container's CPU limit.
func AddProcessor() (end func()) {
	change := func(by int) {
		processors.Lock()
		defer processors.Unlock()
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + by)
	}
	change(+1)
	return sync.OnceFunc(func() { change(-1) })
}
