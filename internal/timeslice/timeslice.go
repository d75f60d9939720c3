// Package timeslice asks the system for how long a thread runs at a time while others are
// due. A thread gets no more time by it, and no less: with short slices it runs soon after
// each wait, and with long ones it lets threads go first that have just waited.
package timeslice

import "time"

// Of Linux (Documentation/scheduler/sched-eevdf.rst), which takes 0.1 ms to 100 ms.
const (
	Short  = 100 * time.Microsecond
	Long   = 50 * time.Millisecond
	Normal = time.Duration(0) // the system's choice: 1.4 ms was seen with two processors
)

// Ask asks for slices of a length for the calling thread, to which the caller has locked its
// goroutine. Systems that know of no such thing (Linux before 6.12) ignore it, and sandboxes
// may forbid it: then slices are as long as those of others.
func Ask(length time.Duration) { ask(length) }
