package main

import (
	"context"
	"os"
	"runtime/debug"
	"time"

	"github.com/kazahana/kazahana/internal/operator/memlimit"
)

// settleTime is when, after the start, settle gives memory back.
const settleTime = 2 * time.Second

// settle gives back the memory that only the start needed: its allocations, and
// the pages of the binary that it touched, many of them of linked packages that
// this configuration does not use. Pages that are needed again come from the page
// cache. Then it goes on to memlimit.GiveBack, until ctx is done.
func settle(ctx context.Context, held func() int64) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(settleTime):
	}
	debug.FreeOSMemory()
	dropBinaryPages()
	memlimit.GiveBack(ctx, held)
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
