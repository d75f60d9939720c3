// Package threads tells the system which of this process's threads run first, and for how
// long at a time.
package threads

import "time"

// Of Linux (Documentation/scheduler/sched-eevdf.rst), which takes 0.1 ms to 100 ms.
const (
	Short  = 100 * time.Microsecond
	Long   = 50 * time.Millisecond
	Normal = time.Duration(0) // the system's choice: 1.4 ms was seen with two processors
)

// Slice asks for slices of a length for the calling thread, to which the caller has locked its
// goroutine. The thread gets no more time by it, and no less: with short slices it runs soon
// after each wait, and with long ones it lets threads go first that have just waited. Systems
// that know of no such thing (Linux before 6.12) ignore it, and sandboxes may forbid it: then
// slices are as long as those of others.
func Slice(length time.Duration) { slice(length) }

// behind is by how much the nice value (sched(7)) of other threads is higher than that of the
// one that goes first. Each has a third of its weight then.
const behind = 5

// GoFirst gives the calling thread, to which the caller has locked its goroutine, three times
// the weight of each other thread of this process, of now and later. It lowers theirs, which
// needs no privilege. Raising them again would: they stay lower, as do processes that they
// start. Only the first call in a process has an effect. Where the system forbids it, all
// threads stay equal.
func GoFirst() { goFirst() }
