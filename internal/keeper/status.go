package keeper

import (
	"time"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Status is the state of a keeper, as of its last event.
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

// Status returns what there is. The slices are not to be changed.
func (c *Core) Status() Status {
	return Status{
		Held: c.saved.Held, Cached: c.saved.Cached, Timeline: c.saved.Timeline, Offered: c.saved.Offered,
		Failures: c.failures, Cause: c.cause, RetryIn: max(c.notBefore-c.at.Elapsed, 0), SkewMS: c.skewMS,
	}
}
