package generator

// Without a spread start, a quiet service's IDs would all be multiples of
// 2^bit_seq: that skews shards by the ID's remainder, and it tells how quiet the service
// is. Starting anywhere would waste throughput under load. So a millisecond starts at a
// random place among the values that it will not need, judged by the use of recent
// milliseconds.

const (
	// reserveFactor times the recent use is kept free behind the start.
	reserveFactor = 2
	// After a peak the memory of it shrinks by 1/decay per busy millisecond,
	// and halves every quietHalving idle ones.
	decay        = 8
	quietHalving = 8
)

// open makes ms the millisecond in use, of which nothing is used yet, and
// chooses how many of its room values to leave out before the first one. The
// caller wants at least want.
func (c *Core) open(ms, room, want int64) (skip int64) {
	c.recent = c.expected(ms)
	c.ms, c.low, c.used, c.full, c.skipped = ms, -1, 0, false, false
	c.base = c.tl.ID(ms, 0)
	if !c.cfg.Spread {
		return 0
	}
	reserve := min(max(reserveFactor*c.recent, want), room, c.cfg.MaxThroughput)
	skip = c.rnd.Int64N(room - reserve + 1)
	c.skipped = skip > 0
	return skip
}

// expected is how many IDs the new millisecond ms is likely to need.
func (c *Core) expected(ms int64) int64 {
	recent := max(c.used, c.recent-c.recent/decay)
	if c.full && c.skipped {
		recent = max(recent, c.cfg.MaxThroughput) // too little was left behind the start
	}
	return recent >> min((ms-c.ms-1)/quietHalving, 62)
}
