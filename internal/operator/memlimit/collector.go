package memlimit

import (
	"context"
	"os"
	"runtime/debug"
	"time"
)

// settleTime is when, after the start, Settle gives memory back, and settleAgain how long it
// then waits before it does so again.
const (
	settleTime  = 2 * time.Second
	settleAgain = time.Minute
)

// Settle gives back the memory that only the start needed, and later what clients have left,
// until ctx is done: the collector alone looks every two minutes where nothing is allocated
// any more.
func Settle(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(settleTime):
	}
	debug.FreeOSMemory()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(settleAgain):
			debug.FreeOSMemory()
		}
	}
}

// Set returns how much memory this process may use: as configured, or what its
// control group allows. The collector keeps a third below it, unless GOMEMLIMIT says
// otherwise: the kernel may hold as much for the sockets, which it does not know of.
func Set(configured int64) int64 {
	limit := configured
	if limit == 0 {
		limit = Of(os.DirFS("/"))
	}
	if _, set := os.LookupEnv("GOMEMLIMIT"); !set {
		debug.SetMemoryLimit(limit / 3 * 2)
	}
	return limit
}
