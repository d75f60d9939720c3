package memlimit

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	giveBackLook  = 2 * time.Second // between looks, which cost nothing
	giveBackFirst = 6 * time.Second
	giveBackLast  = time.Minute
	littleMemory  = 32 << 20 // more than a process needs that has few clients
	worthwhile    = 16 << 20 // to give back
	goroutineSize = 16 << 10 // with what it holds
)

// GiveBack returns memory to the system when clients no longer need it, until ctx is done.
// Left alone, the collector might take minutes, for nothing is allocated any more. held is
// what clients hold beside goroutines, in bytes; nil: nothing is known of it.
func GiveBack(ctx context.Context, held func() int64) {
	ticker := time.NewTicker(giveBackLook)
	defer ticker.Stop()
	g := giver{pause: giveBackFirst}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		load := int64(runtime.NumGoroutine()) * goroutineSize
		if held != nil {
			load += held()
		}
		before := inUse()
		if g.due(load, before) {
			runtime.GC() // empties pools, together with the next one
			debug.FreeOSMemory()
			g.gave(before - inUse())
		}
	}
}

// giver decides when memory is given back.
type giver struct {
	pause, waited time.Duration
	peak, load    int64 // of what clients hold, since it was given back last
}

// due reports whether it is time. When most clients have gone, it is at once. Otherwise a
// process that needs its memory pays for fewer and fewer collections.
func (g *giver) due(load, inUse int64) bool {
	g.load, g.peak = load, max(g.peak, load)
	if inUse <= littleMemory {
		g.pause, g.waited = giveBackFirst, 0
		return false
	}
	g.waited += giveBackLook
	return g.waited >= g.pause || g.peak >= worthwhile && load <= g.peak/4
}

// gave says how many bytes were given back.
func (g *giver) gave(bytes int64) {
	g.peak, g.waited, g.pause = g.load, 0, min(2*g.pause, giveBackLast)
	if bytes >= worthwhile {
		g.pause = giveBackFirst
	}
}

// inUse is the memory that Go has from the system, in bytes.
func inUse() int64 {
	all := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(all)
	return int64(all[0].Value.Uint64() - all[1].Value.Uint64())
}
