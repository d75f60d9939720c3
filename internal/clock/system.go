package clock

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// System reads the machine's clocks.
type System struct{}

// Wall implements Source.
func (System) Wall() int64 { return time.Now().UnixNano() }

// Boot implements Source.
func (System) Boot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(suspendAwareClock, &ts); err != nil {
		// The clock exists on every kernel this runs on; without it no
		// statement about the wall clock could be made.
		panic(fmt.Sprintf("clock: cannot read the clock that counts suspend: %v", err))
	}
	return time.Duration(ts.Nano())
}
