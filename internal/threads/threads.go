// Package threads tells the system for how long at a time a thread of this process runs, and
// the runtime how many processors (P) it has.
package threads

import (
	"runtime"
	"sync"
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
