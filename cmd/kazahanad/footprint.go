package main

import (
	"context"
	"runtime/debug"
	"time"
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
