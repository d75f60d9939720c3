//go:build !linux

package boottime

import "time"

var start = time.Now()

// Now returns the time since this process's start. The wall clock counts a suspend, which
// the monotonic clock may not; the larger of the two never counts too little, unless the
// wall clock is set back in the same moment.
func Now() time.Duration {
	now := time.Now()
	return max(now.Sub(start), now.Round(0).Sub(start.Round(0)))
}
