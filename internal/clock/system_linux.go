package clock

import "golang.org/x/sys/unix"

const suspendAwareClock = unix.CLOCK_BOOTTIME
