package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/kazahana/kazahana/internal/operator/memlimit"
)

// settleTime is when, after the start, settle gives memory back.
const settleTime = 2 * time.Second

// settle gives back the memory that only the start needed: its allocations, and
// the pages of the binary that it touched, many of them of linked packages that
// this configuration does not use. Pages that are needed again come from the page
// cache. Then it goes on to giveBack, until ctx is done.
func settle(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(settleTime):
	}
	debug.FreeOSMemory()
	dropBinaryPages()
	giveBack(ctx)
}

const (
	giveBackFirst = 5 * time.Second
	giveBackLast  = time.Minute
	littleMemory  = 32 << 20 // more than a process needs that has few clients
	worthwhile    = 16 << 20 // to give back
)

// giveBack returns memory to the system when clients no longer need it, until ctx is done.
// Left alone, the collector might take minutes, for nothing is allocated any more.
func giveBack(ctx context.Context) {
	pause := giveBackFirst
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		before := inUse()
		if before <= littleMemory {
			pause = giveBackFirst
			continue
		}
		runtime.GC() // empties pools, together with the next one
		debug.FreeOSMemory()
		pause = nextGiveBack(pause, int64(before)-int64(inUse()))
	}
}

// nextGiveBack is the pause after one that gave back so many bytes. A process that needs
// its memory pays for fewer and fewer collections.
func nextGiveBack(pause time.Duration, gave int64) time.Duration {
	if gave >= worthwhile {
		return giveBackFirst
	}
	return min(2*pause, giveBackLast)
}

// inUse is the memory that Go has from the system, in bytes.
func inUse() uint64 {
	all := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(all)
	return all[0].Value.Uint64() - all[1].Value.Uint64()
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
