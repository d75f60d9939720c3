package daemon

import (
	"github.com/kazahana/kazahana/internal/placement/driver"
)

const (
	// smallBatch is up to how many IDs what a request holds while it waits is part of its
	// own cost.
	smallBatch = 64
	// rangeSize is what an ID costs at most while its request waits. Where many wait, each
	// gets its IDs one at a time, and each is a range of its own in a slice that grows.
	rangeSize = 32
)

// streamSize is what a watch of events costs that is behind.
const streamSize = driver.SubscriptionSize

// reserveBatch takes memory for the IDs of a request that waits.
func (d *responder) reserveBatch(ids int64) (reserved int64, err error) {
	if ids <= smallBatch {
		return 0, nil
	}
	return ids * rangeSize, d.server.budget.reserve(d.user, d.account, ids*rangeSize, "requests that wait for many IDs", "ask for fewer at a time")
}

// reserve takes memory for something that cannot be taken away: where others cannot make
// room, it is refused. It does not wait for connections that end; asks is none of them.
func (b *budget) reserve(u *user, asks *account, n int64, what, advice string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	key, most := keyMemory, func(u *user) int64 { return u.kept }
	if b.mayKeep(u, n) {
		key, most = b.makeRoom(u, asks, n), (*user).stays
	}
	if key != "" {
		r := b.shortOf(key, u)
		if key == keyMemory {
			r.Whose = b.mostOf(most)
		}
		return overloaded(b.quotas, r, "%s, and other memory, fill what %v may have: %s, or raise %s", what, u.owner, advice, key)
	}
	b.keep(u, n)
	return nil
}

// mayKeep reports whether the user may have n bytes more that cannot be taken away. Such memory
// has three quarters of all: the rest is for messages and answers, which give way to each other.
// The users share it as places are shared, but for the first of one user and of all. mu is held.
func (b *budget) mayKeep(u *user, n int64) bool {
	all, _ := b.limits.Load().bytes()
	part, taken := all-all/4, b.kept+n
	return b.kept == 0 || taken <= part && (u.kept == 0 || leaves(taken, part, 0, u.kept+n))
}

// keep changes what a user has that cannot be taken away. mu is held.
func (b *budget) keep(u *user, n int64) {
	u.kept += n
	b.kept += n
	b.hold(u, n)
}

// release gives back what reserve took.
func (b *budget) release(u *user, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keep(u, -n)
	b.wake()
}

// hold changes what a user holds. mu is held.
func (b *budget) hold(u *user, n int64) {
	u.bytes += n
	b.used += n
}
