package keeper

import (
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
)

const (
	// renewAt is the part of a term after which a lease is replaced
	// (seed 000, section 5.5), in percent.
	renewAtPercent = 90
	// earlyPart is the part of a term by which a grant may lie in the future
	// of this host's clock and still be of use: it becomes usable before the
	// lease that it replaces has ended.
	earlyPart = 10
	// jitterPart is the part of a backoff that chance adds, or takes away where the
	// longest backoff leaves no room, so that hosts which failed together do not
	// come back together. It rather adds: a host that comes back early finds that
	// what others give back has not arrived yet.
	jitterPart = 10
	// pollInterval is how often a keeper looks at the clock at least: it may
	// have been set, or the machine may have slept.
	pollInterval = time.Second
	// minNap keeps a keeper from spinning in all cases.
	minNap = time.Millisecond
)

// renewalMS is when a lease is due for replacement, as Unix ms.
func renewalMS(created, expired int64) int64 {
	return created + (expired-created)*renewAtPercent/100
}

// covers reports whether a grant is of use at the time now: neither due for
// replacement already nor too far ahead.
func covers(created, expired, now int64) bool {
	return created-(expired-created)/earlyPart <= now && now < renewalMS(created, expired)
}

// backoff is how long to wait after so many failures in a row (seed 000,
// section 5.7), never more than most. random is in [0, 1).
func backoff(failures int, first, most time.Duration, random float64) time.Duration {
	d := min(first, most)
	for i := 1; i < failures && d < most; i++ {
		d += min(d, most-d)
	}
	jitter := time.Duration(random * float64(d) / jitterPart)
	if jitter > most-d {
		return d - jitter
	}
	return d + jitter
}

// throughput is the sum over the held leases for which of is true.
func (c *Core) throughput(of func(lease.Lease) bool) (sum int64) {
	for _, l := range c.saved.Held {
		if of(l) {
			sum += l.Throughput()
		}
	}
	return sum
}

// missing is the throughput that the leases lack. A lease that the clock reaches soon counts like a
// usable one, lest more and more are acquired until then, by a daemon that crashes again and again too.
func (c *Core) missing() int64 {
	return c.cfg.MaxThroughput - c.throughput(func(l lease.Lease) bool { return covers(l.Created, l.Expired, c.at.MS) })
}

// due returns how much throughput to ask for now; 0 = do not ask.
func (c *Core) due() int64 {
	need := c.missing()
	if need <= 0 || c.at.Elapsed < c.notBefore {
		return 0
	}
	replaceable := slices.ContainsFunc(c.saved.Held, func(l lease.Lease) bool { return c.aging(l) && c.at.MS < l.Expired })
	if need < c.cfg.MaxThroughput && !replaceable && !c.growth {
		return 0 // fewer leases than asked for are enough until they are used up
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
	sooner(c.notBefore - elapsed)
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
