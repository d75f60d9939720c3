package main

import (
	"context"
	"os"
	"runtime/debug"
	"time"

	"github.com/kazahana/kazahana/internal/operator/memlimit"
)

// settleTime is when, after the start, settle gives memory back, and settleAgain how long it
// then waits before it does so again.
const (
	settleTime  = 2 * time.Second
	settleAgain = time.Minute
)

// settle gives back the memory that only the start needed: its allocations, and
// the pages of the binary that it touched, many of them of linked packages that
// this configuration does not use. Pages that are needed again come from the page
// cache. Later it gives back what clients have left, until ctx is done: the collector
// alone looks every two minutes where nothing is allocated any more.
func settle(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(settleTime):
	}
	debug.FreeOSMemory()
	dropBinaryPages()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(settleAgain):
			debug.FreeOSMemory()
		}
	}
}

// limitMemory returns how much memory this process may use: as configured, or what its
// control group allows. The collector keeps a third below it, unless GOMEMLIMIT says
// otherwise: the kernel may hold as much for the sockets, which it does not know of.
func limitMemory(configured int64) int64 {
	limit := configured
	if limit == 0 {
		limit = memlimit.Of(os.DirFS("/"))
	}
	if _, set := os.LookupEnv("GOMEMLIMIT"); !set {
		debug.SetMemoryLimit(limit / 3 * 2)
	}
	return limit
}
