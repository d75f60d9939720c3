package limitlistener

import (
	"math"

	"golang.org/x/sys/unix"
)

// filesBeside is the number of files that a process opens besides the connections that it
// serves: state, stores, connections to servers, and connections that it turns away.
const filesBeside = 192

// Files is how many connections the process may have open, as RLIMIT_NOFILE allows.
func Files() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt32
	}
	allowed := int(min(uint64(limit.Cur), math.MaxInt32)) // Go has raised it to the hard limit
	return max(allowed-filesBeside, allowed/2)
}

// Beside is how many connections a listener may have that is no more than an addition to
// the process's main one: most, or an eighth of all.
func Beside(most int) int { return max(min(most, Files()/8), 1) }
