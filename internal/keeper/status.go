package keeper

import (
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Status is what a keeper has and does, at the end of its last step.
type Status struct {
	Held     []lease.Lease
	Cached   *lease.Lease
	Timeline snowflake.Timeline
	Offered  *snowflake.Timeline // the timeline of a lease that was refused
	Failures int                 // failed acquires in a row
	Cause    error               // of the last one
	RetryIn  time.Duration       // until the next try; 0 = none is planned or it is due
	SkewMS   int64               // provider's clock minus ours at the last grant
}

// Status may be called from any goroutine. The slices are not to be changed.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// report renews what Status shows.
func (k *Keeper) report() {
	s := Status{
		Held: k.saved.Held, Cached: k.saved.Cached, Timeline: k.saved.Timeline, Offered: k.saved.Offered,
		Failures: k.failures, Cause: k.cause, RetryIn: max(k.notBefore-k.Clock.Elapsed(), 0), SkewMS: k.skewMS,
	}
	k.mu.Lock()
	k.status = s
	k.mu.Unlock()
}
