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
	// jitterPart is the part of a backoff that chance adds, or takes away where the
	// longest backoff leaves no room, so that hosts which failed together do not
	// come back together. It rather adds: a host that comes back early finds that
	// what others give back has not arrived yet.
	jitterPart = 10
	// maxLogged is how many leases of one grant get a line each in the log.
	maxLogged = 16
	// pollInterval is how often a keeper looks at the clock at least: it may
	// have been set, or the machine may have slept.
	pollInterval = time.Second
	// aMoment is how long ago the last answer of a provider that cannot verify may
	// be for a stop to rely on it.
	aMoment = 10 * time.Second
	// releaseChunk is how many leases a stop forgets at a time before it sends
	// their releases: a kill -9 in between costs the next start no more.
	releaseChunk = 16
	// saveInterval is how often a write of the local state that failed is
	// tried again.
	saveInterval = 10 * time.Second
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

// fenceWait is how long to wait before a provider that refuses grants for so
// long is asked again: until the end, but no longer than after any other failure.
// An operator may lift the fence, and the two clocks may differ by more than was
// known. random is in [0, 1): hosts that wait for one fence do not all come at its
// end.
func fenceWait(end, usual, first, most time.Duration, random float64) time.Duration {
	if end <= 0 || end > most {
		return usual
	}
	return min(max(end, first)+time.Duration(random*float64(first)), most)
}
