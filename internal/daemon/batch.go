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
func (d *desk) reserveBatch(ids int64) (reserved int64, err error) {
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
	if key := b.makeRoom(u, asks, n); key != "" {
		r := b.shortOf(key, u)
		if key == keyMemory {
			r.Whose = b.mostOf((*user).stays)
		}
		return overloaded(b.quotas, r, "%s, and other memory, fill what %v may have: %s, or raise %s", what, u.owner, advice, key)
	}
	b.hold(u, n)
	return nil
}

// release gives back what reserve took.
func (b *budget) release(u *user, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hold(u, -n)
	b.wake()
}

// hold changes what a user holds. mu is held.
func (b *budget) hold(u *user, n int64) {
	u.bytes += n
	b.used += n
}
