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
// cache.
func settle(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(settleTime):
	}
	debug.FreeOSMemory()
	dropBinaryPages()
}

// limitMemory returns how much memory this process may use: as configured, or what its
// control group allows. The collector keeps a tenth below it, unless GOMEMLIMIT says
// otherwise.
func limitMemory(configured int64) int64 {
	limit := configured
	if limit == 0 {
		limit = memlimit.Of(os.DirFS("/"))
	}
	if _, set := os.LookupEnv("GOMEMLIMIT"); !set {
		debug.SetMemoryLimit(limit - limit/10)
	}
	return limit
}
