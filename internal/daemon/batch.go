package daemon

import "github.com/kazahana/kazahana/internal/wire"

const (
	// smallBatch is up to how many IDs what a request holds while it waits is part of its
	// own cost.
	smallBatch = 64
	// rangeSize is what an ID costs at most while its request waits. Where many wait, each
	// gets its IDs one at a time, and each is a range of its own in a slice that grows.
	rangeSize = 32
)

// reserveBatch takes memory for the IDs of a request that waits. They cannot be taken away:
// where there is no room, the request is refused.
func (b *budget) reserveBatch(u *user, ids int64) (reserved int64, err error) {
	if ids <= smallBatch {
		return 0, nil
	}
	n := ids * rangeSize
	b.mu.Lock()
	defer b.mu.Unlock()
	if key := b.lacking(u, n, 0, 0); key != "" {
		return 0, wire.Errorf(wire.CodeOverloaded,
			"requests that wait for many IDs, and other memory, fill what user %d may have: ask for fewer at a time, or raise %s", u.uid, key)
	}
	b.hold(u, n)
	return n, nil
}

// releaseBatch gives back what reserveBatch took, once the answer is written.
func (b *budget) releaseBatch(u *user, n int64) {
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
	b.peak = max(b.peak, b.used)
}
