package timeslice

import (
	"time"

	"golang.org/x/sys/unix"
)

func ask(length time.Duration) {
	attr, err := unix.SchedGetAttr(0, 0)
	if err == nil && attr.Policy == unix.SCHED_NORMAL {
		attr.Runtime = uint64(length)
		_ = unix.SchedSetAttr(0, attr, 0)
	}
}
