package keeper

import "time"

const (
	// renewAt is the part of a term after which a lease is replaced
	// (seed 000, section 5.5), in percent.
	renewAtPercent = 90
	// acquiresPerTerm bounds the rate of acquires: one per term/10.
	acquiresPerTerm = 10
	// earlyPart is the part of a term by which a grant may lie in the future
	// of this host's clock and still be of use: it becomes usable before the
	// lease that it replaces has ended.
	earlyPart = 10
	// jitterPart is the part of a backoff that is added at random, so that
	// hosts which failed together do not come back together.
	jitterPart = 10
	// maxRetryAfter bounds what a provider may ask for, in whatever unit it
	// meant it.
	maxRetryAfter = 10 * time.Minute
	// maxLogged is how many leases of one grant get a line each in the log.
	maxLogged = 16
	// pollInterval is how often a keeper looks at the clock at least: it may
	// have been set, or the machine may have slept.
	pollInterval = time.Second
	// saveInterval is how often a write of the durable state that failed is
	// tried again.
	saveInterval = 10 * time.Second
	// minNap keeps a keeper from spinning whatever it computes.
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
// section 5.7). random is in [0, 1).
func backoff(failures int, first, most time.Duration, random float64) time.Duration {
	d := first
	for i := 1; i < failures && d < most; i++ {
		d *= 2
	}
	d = min(d, most)
	return d + time.Duration(random*float64(d)/jitterPart)
}
