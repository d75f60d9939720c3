package lock

import "time"

const (
	// renewPart: a held lease is renewed after this part of its rest.
	renewPart = 3
	// marginPart of a lease's rest is not relied on: the holder has to hear of the loss before
	// the end, and clocks run at different speeds.
	marginPart = 20
	// watchInterval is how often a held lease is looked at, at least: timers stand
	// still while the machine is suspended, and the lease's end does not.
	watchInterval = time.Second

	// storeTick is the resolution of a store's clock: a lease is shorter by up to that.
	storeTick = time.Millisecond

	// listenEvery is how often a queue subscribes at most.
	listenEvery = 5 * time.Second
	// spread is how far the hosts that wait for the same end come apart.
	spread = 10 * time.Millisecond

	// How soon a store that has failed is asked again.
	retryFirst = 20 * time.Millisecond
	retryMost  = 2 * time.Second

	// storeWait is how long a store waits by itself at a time.
	storeWait = 20 * time.Second

	// MaxHeld bounds the goroutines and the renewals of one host.
	MaxHeld = 10_000
)

// How often a store is asked whether a lock is free. A store that tells of releases is still
// asked once in noticeMost. Only tests change these.
var (
	pollFirst  = 20 * time.Millisecond
	pollMost   = time.Second
	noticeMost = 5 * time.Second
)

// reliedUntil is how long a holder relies on a lease: sent is when it asked, remaining the rest
// in the answer.
func reliedUntil(sent, remaining time.Duration) time.Duration {
	return sent + remaining - remaining/marginPart
}

// renewalAt is when such a lease is due for renewal.
func renewalAt(sent, remaining time.Duration) time.Duration { return sent + remaining/renewPart }

// backoff is how long to wait after so many failures in a row, the first being 1.
// random is in [0, 1), and takes up to a half away.
func backoff(failures int, first, most time.Duration, random float64) time.Duration {
	d := first
	for i := 1; i < failures && d < most; i++ {
		d *= 2
	}
	d = min(d, most)
	return d - time.Duration(random*float64(d)/2)
}

// askAgainIn is the pause before the next question about a lock that was found held so
// many times in a row, by a lease with so much left. The question comes at the lease's
// end, or up to spread later. A store may be late to see the end, etcd by seconds: it then
// says that a tick is left, and the pauses double, so that this host is late by about
// twice as much at worst, and by pollMost or, where the store tells of releases,
// noticeMost at most.
func askAgainIn(found int, remaining time.Duration, notified bool, random float64) time.Duration {
	most := pollMost
	if notified {
		most = noticeMost
	}
	if found > 1 && remaining <= storeTick {
		return backoff(found, pollFirst, most, random)
	}
	end := remaining + time.Duration(random*float64(spread))
	if notified {
		return min(end, most)
	}
	return min(end, backoff(found, pollFirst, most, random))
}
