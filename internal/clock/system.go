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
	if err := readSuspendAware(&ts); err != nil {
		// Every supported kernel has this clock, and the wall clock cannot be judged
		// without it.
		panic(fmt.Sprintf("clock: cannot read the clock that counts suspend: %v", err))
	}
	return time.Duration(ts.Nano())
}
