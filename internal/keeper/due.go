package keeper

import (
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
)

// remaining is the throughput of the leases that are usable now and not due
// for replacement.
func (c *Core) remaining() (sum int64) {
	for _, l := range c.saved.Held {
		if c.usable(l) && !c.aging(l) {
			sum += l.Throughput()
		}
	}
	return sum
}

// supply is the throughput of the leases that are usable now or will be soon,
// and not due for replacement: what growth has to look at, lest it acquire
// again and again until the clock has reached the first new lease.
func (c *Core) supply() (sum int64) {
	for _, l := range c.saved.Held {
		if covers(l.Created, l.Expired, c.at.MS) {
			sum += l.Throughput()
		}
	}
	return sum
}

// due returns how much throughput to ask for now; 0 = do not ask.
func (c *Core) due() int64 {
	elapsed, remaining := c.at.Elapsed, c.remaining()
	need := c.cfg.MaxThroughput - remaining
	if need <= 0 || elapsed < c.notBefore {
		return 0
	}
	if grow := c.cfg.MaxThroughput - c.supply(); c.growth && grow > 0 && remaining > 0 && elapsed >= c.growthBefore {
		return grow
	}
	replaceable := slices.ContainsFunc(c.saved.Held, func(l lease.Lease) bool { return c.aging(l) && c.at.MS < l.Expired })
	limited := c.acquired && elapsed < c.lastAcquire+c.term/acquiresPerTerm
	if limited || (remaining > 0 && !replaceable) {
		return 0
	}
	return need
}

// nap is how long nothing will be due, as far as the clocks tell.
func (c *Core) nap() time.Duration {
	now, elapsed := c.at.MS, c.at.Elapsed
	nap := pollInterval
	sooner := func(d time.Duration) {
		if d > 0 {
			nap = min(nap, d)
		}
	}
	if len(c.refused) > 0 {
		sooner(minNap)
	}
	sooner(c.notBefore - elapsed)
	if c.acquired {
		sooner(c.lastAcquire + c.term/acquiresPerTerm - elapsed)
	}
	if c.cfg.VerifyEvery > 0 {
		sooner(c.nextVerify - elapsed)
	}
	for _, l := range c.saved.Held {
		sooner(time.Duration(renewalMS(l.Created, l.Expired)-now) * time.Millisecond)
		sooner(time.Duration(l.Expired-now) * time.Millisecond)
		sooner(time.Duration(l.Created-now) * time.Millisecond)
	}
	return max(nap, minNap)
}
