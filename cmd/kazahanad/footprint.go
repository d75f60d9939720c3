package main

import (
	"context"
	"runtime/debug"
	"time"
)

// settleTime is how long after the start the memory that only the start needed
// is given back.
const settleTime = 2 * time.Second

// settle gives back the memory that only the start needed: what it allocated,
// and the pages of the binary that it touched, of which packages that are linked
// and not used have a good part. What is needed again is read again, from the
// page cache.
func settle(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(settleTime):
	}
	debug.FreeOSMemory()
	dropBinaryPages()
}
