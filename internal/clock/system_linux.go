package clock

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readSuspendAware is unix.ClockGettime without telling the runtime. The call does not wait.
// Callers hold a lock, and during a call that it knows of the runtime could give their
// processor away.
func readSuspendAware(ts *unix.Timespec) error {
	_, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(ts)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

var started = time.Now()

// Monotonic implements Monotonic. Linux slews CLOCK_MONOTONIC together with
// the wall clock, so that only a step changes the distance between the two.
func (System) Monotonic() time.Duration { return time.Since(started) }
