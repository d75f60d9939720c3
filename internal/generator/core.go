package generator

import (
	"math/rand/v2"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Config of a generator.
type Config struct {
	MaxThroughput int64    // IDs per millisecond, at least 1
	Fallback      Fallback //
	MaxBackwardMS int64    // how far the clock may be behind and be waited for; 0 = not at all, negative = no limit
	Spread        bool     // start milliseconds at a random sequence number where there is room
	Standalone    bool     // there is no provider to wait for or to blame
}

// Kind says how an ID was made.
type Kind uint8

// The kinds of IDs.
const (
	Regular                   Kind = iota
	FallbackCachedID               // before the reservation of its slot ends: no other holder can make it
	FallbackCachedUncertainID      // beyond that
	FallbackRandomID
	kinds
)

// Range is Count consecutive IDs from Start on.
type Range struct {
	Start snowflake.ID
	Count int64
	Kind  Kind
}

// Wait is what a caller must wait for.
type Wait uint8

// What there is to wait for.
const (
	WaitNone     Wait = iota
	WaitSequence      // this millisecond is used up
	WaitClock         // the clock is behind
	WaitLease         // the first lease since the start
)

// String is the word used in error details.
func (w Wait) String() string { return [...]string{"nothing", "sequence", "clock", "lease"}[w] }

// Stop says why no (further) ID can be made now. The zero value means that one
// was made.
type Stop struct {
	Wait    Wait  // what to wait for
	UntilMS int64 // Unix ms at which to try again
	Err     error // or why waiting is no use
}

// run is the piece of a millisecond's values that is being handed out.
type run struct {
	end  int64 // low bits, exclusive; where MaxThroughput is reached at the latest
	kind Kind
}

// Core is the stream. It is not safe for concurrent use.
type Core struct {
	cfg Config
	tl  snowflake.Timeline
	rnd *rand.Rand

	regular   supply // the leases' slots, until they expire
	reserved  supply // for fallback: the same slots and the cached one, while no other holder can have them
	uncertain supply // for fallback: the same slots, from then on
	cause     error  // why there is no lease
	starting  bool   // the first lease is still worth waiting for

	floor int64        // no ID may embed less than this Unix ms
	ms    int64        // Unix ms of the last ID; below floor when this life made none
	base  snowflake.ID // with which ms begins
	low   int64        // low bits of the last ID
	used  int64        // IDs that embed ms
	run   run          // the rest of the current run begins at low+1

	recent  int64 // how many IDs recent milliseconds took
	skipped bool  // this millisecond did not start at its first value
	full    bool  // this millisecond's exhaustion has been counted
	behind  bool  // the clock was behind at the last look
	growth  bool  // held leases were used up below MaxThroughput

	stats Stats
}

// Stats count since the start.
type Stats struct {
	Issued         [kinds]uint64 // by Kind
	Exhaustions    uint64        // milliseconds that used up their leases or MaxThroughput
	BackwardEvents uint64        // how often the clock was found behind
}

// NewCore returns a stream on the timeline. Its IDs embed at least floor, the mark of earlier
// lives (0 = none).
func NewCore(cfg Config, tl snowflake.Timeline, floor int64, rnd *rand.Rand) *Core {
	return &Core{cfg: cfg, tl: tl, rnd: rnd, floor: floor, ms: floor - 1, starting: !cfg.Standalone}
}

// SetLeases replaces the leases. cached is a lease that may have expired and
// still serves for fallback; held ones serve for it too once they expired.
func (c *Core) SetLeases(held []lease.Lease, cached *lease.Lease, cause error) {
	c.regular.windows, c.reserved.windows, c.uncertain.windows = nil, nil, nil
	for _, l := range held {
		c.regular.add(l.Slot(), l.Created, l.Expired)
		c.addFallback(l)
	}
	if cached != nil {
		c.addFallback(*cached)
	}
	for _, s := range []*supply{&c.regular, &c.reserved, &c.uncertain} {
		s.sort()
	}
	c.cause = cause
	c.forget() // the lease that it was cut from may be gone
}

// forget drops the values worked out from the leases so far.
func (c *Core) forget() {
	c.run = run{}
	c.regular.forget()
	c.reserved.forget()
	c.uncertain.forget()
}

// EndStartup says that the first lease is no longer worth waiting for.
func (c *Core) EndStartup() { c.starting = false }

// LastMS is the largest Unix ms that any ID so far may embed, earlier lives
// included.
func (c *Core) LastMS() int64 { return max(c.ms, c.floor-1) }

// Take makes up to want IDs as one range, at the time now (Unix ms). When the
// range is empty, Stop says why. allowFallback = false asks for regular IDs.
func (c *Core) Take(now, want int64, allowFallback bool) (Range, Stop) {
	if now == c.ms && c.left() > 0 && c.run.kind == Regular {
		return c.cut(now, c.low+1, want), Stop{}
	}
	c.noteClock(now)
	ms, stop := c.timestamp(now)
	if stop != (Stop{}) {
		return Range{}, stop
	}
	return c.takeAt(ms, now, want, allowFallback)
}

// earliest is the first Unix ms that the next ID may embed.
func (c *Core) earliest() int64 { return max(c.ms, c.floor, c.tl.EpochMS) }

// noteClock counts how often the clock is found behind.
func (c *Core) noteClock(now int64) {
	behind := now < c.earliest()
	if behind && !c.behind {
		c.stats.BackwardEvents++
	}
	c.behind = behind
}

// timestamp chooses the millisecond to embed, by the backward policy.
func (c *Core) timestamp(now int64) (int64, Stop) {
	earliest := c.earliest()
	if now >= earliest {
		if now >= c.tl.EndMS() {
			return 0, Stop{Err: ErrOverflow}
		}
		return now, Stop{}
	}
	backward := earliest - now
	if limit := c.cfg.MaxBackwardMS; limit >= 0 && backward > limit {
		return 0, Stop{Err: &ClockBackwardError{BackwardMS: backward, LimitMS: limit, Earlier: c.ms < c.floor}}
	}
	if c.ms == earliest {
		return c.ms, Stop{} // the rest of the last millisecond can be spent
	}
	return 0, Stop{Wait: WaitClock, UntilMS: earliest}
}

func (c *Core) takeAt(ms, now, want int64, allowFallback bool) (Range, Stop) {
	fresh := ms > c.ms
	if !fresh && c.used >= c.cfg.MaxThroughput {
		return Range{}, c.exhausted(ms, now)
	}
	from := int64(0)
	if !fresh {
		from = c.low + 1
	}
	if room := c.regular.roomAt(ms); room > 0 {
		c.starting = false
		if at, ok := c.startIn(&c.regular, Regular, 0, ms, from, want, fresh); ok {
			return c.cut(ms, at, want), Stop{}
		}
		if c.used >= room && !c.skipped && room < c.cfg.MaxThroughput {
			c.growth = true
		}
		return Range{}, c.exhausted(ms, now)
	}
	if c.starting {
		return Range{}, Stop{Wait: WaitLease, UntilMS: ms + maxNap.Milliseconds()} // one that is granted may begin soon
	}
	if !allowFallback || c.cfg.Fallback == FallbackNone {
		return Range{}, Stop{Err: c.refusal()}
	}
	return c.fallback(ms, now, max(from, c.tl.FallbackBit()), want, fresh)
}

// startIn finds the first value at or above from in what the supply allows at ms,
// and sets the run that it begins. base is added to the supply's values.
func (c *Core) startIn(s *supply, kind Kind, base, ms, from, want int64, fresh bool) (at int64, ok bool) {
	var end int64
	if fresh {
		at, end = s.nth(c.open(ms, s.roomAt(ms), want))
		ok = true
	} else {
		at, end, ok = s.next(max(from-base, 0))
	}
	if ok {
		c.begin(base+at, base+end, kind)
	}
	return base + at, ok
}

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

// exhausted says that the millisecond has no value left.
func (c *Core) exhausted(ms, now int64) Stop {
	if !c.full && ms == c.ms {
		c.full = true
		c.stats.Exhaustions++
	}
	if now < ms {
		return Stop{Wait: WaitClock, UntilMS: ms + 1}
	}
	return Stop{Wait: WaitSequence, UntilMS: ms + 1}
}

// begin makes the values in [at, end) the run.
func (c *Core) begin(at, end int64, kind Kind) {
	if at < 0 || end > c.tl.MaxLow()+1 {
		panic("generator: a value does not fit the timeline")
	}
	c.run = run{end: min(end, at+c.cfg.MaxThroughput-c.used), kind: kind}
}

// left is how many values of the run are left.
func (c *Core) left() int64 { return c.run.end - c.low - 1 }

// cut takes up to want values of the run, beginning at low bits at, and makes
// them the last ones given out. Every ID leaves through here.
func (c *Core) cut(ms, at, want int64) Range {
	n := min(want, c.run.end-at)
	if n < 1 || ms != c.ms || ms < c.floor || at <= c.low {
		panic("generator: an ID would not be above the last one")
	}
	c.low = at + n - 1
	c.used += n
	c.stats.Issued[c.run.kind] += uint64(n)
	return Range{Start: c.base + snowflake.ID(at), Count: n, Kind: c.run.kind}
}

// Rebase moves the stream to another timeline, as the first lease of a service
// may ask for. It reports whether it did: not when an ID made so far, in this
// life or an earlier one, could be above one made from now on.
func (c *Core) Rebase(tl snowflake.Timeline, now int64) bool {
	if tl == c.tl {
		return true
	}
	last := c.LastMS()
	next := max(now, last+1)
	if !tl.Contains(next) {
		return false
	}
	if last > 0 && c.tl.Contains(last) && c.tl.ID(last, c.tl.MaxLow()) >= tl.ID(next, 0) {
		return false
	}
	c.tl, c.floor = tl, max(c.floor, next)
	c.SetLeases(nil, nil, c.cause) // they are of another timeline
	return true
}
