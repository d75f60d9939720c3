package boottime

import (
	"syscall"
	"time"
	"unsafe"
)

const clockBootTime = 7

// Now returns the time since the machine's start.
func Now() time.Duration {
	var ts syscall.Timespec
	if _, _, err := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBootTime, uintptr(unsafe.Pointer(&ts)), 0); err != 0 {
		panic("kazahana: cannot read the clock that counts suspend: " + err.Error()) // every supported kernel has it
	}
	return time.Duration(ts.Nano())
}
