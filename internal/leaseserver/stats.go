package leaseserver

import (
	"errors"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/leaseapi"
	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
)

// stats are the server's knowledge beside its stores: the clients, their requests, the
// pools as they were last listed, and whether the provider answers. It is a step
// function: each call is an event or a question, with its time where that counts. It has
// no clock, no lock and no I/O; Server.mu guards it.
type stats struct {
	limits   *limiter
	counts   counts
	seen     map[uint64]struct{} // digests of the clients that have come
	pools    map[string]*poolStats
	failedMS int64         // when the provider was last unavailable; 0: it answered since
	fresh    time.Duration // viewAge; in tests also 0, to look anew each time
}

// counts are since the server's start, for the status page.
type counts struct{ leases, refused int64 }

// poolStats is the knowledge of one pool.
type poolStats struct {
	latest      *view
	course      trend
	fencedUntil int64             // Unix ms until which acquires are refused, as far as a client has tried
	fullness    provider.Fullness // when it was listed last, or an acquire was refused; "" = not known
	told        provider.Fullness // to the log
	toldMS      int64
}

func newStats(limits *limiter) stats {
	return stats{limits: limits, seen: map[uint64]struct{}{}, pools: map[string]*poolStats{}, fresh: viewAge}
}

// of is the pool's page, which is begun where there is none.
func (b *stats) of(pool string) *poolStats {
	p := b.pools[pool]
	if p == nil {
		p = &poolStats{}
		b.pools[pool] = p
	}
	return p
}

// maxSeen bounds the memory of which clients have come. Beyond it all are forgotten, and clients
// that do not say that they came before count once more.
const maxSeen = 1 << 16

// arrived tells a client that was not counted in the pool from a counted one. A client
// that says that it has come before is believed, so that it counts once at all servers,
// and after their restarts. Others are told apart by their word in the request: a process
// is a client.
func (b *stats) arrived(client uint64, saysNew bool) provider.Client {
	_, known := b.seen[client]
	if !known && len(b.seen) >= maxSeen {
		clear(b.seen)
	}
	b.seen[client] = struct{}{}
	if !known && saysNew {
		return provider.NewClient
	}
	return provider.KnownClient
}

// acquired notes what became of a client's acquire in a pool.
func (b *stats) acquired(pool string, client uint64, kind provider.Client, leases int, err error) {
	if err == nil {
		b.counts.leases += int64(leases)
		b.of(pool).fencedUntil = 0
		return
	}
	b.counts.refused++
	if fence, ok := errors.AsType[*provider.FencedError](err); ok {
		b.of(pool).fencedUntil = fence.UntilMS
	}
	if kind == provider.NewClient && leaseapi.FromError(err, 0).Code == problem.Unavailable {
		delete(b.seen, client) // it is not known whether the store counted it
	}
}

// called notes whether the provider answers. Listing may take too long where all
// else is well, and a peer that has gone says nothing of the provider.
func (b *stats) called(op string, err error, gone bool, nowMS int64) {
	switch {
	case op == "list" || op == "locate" || op == "stats":
	case err == nil || leaseapi.FromError(err, 0).Code != problem.Unavailable:
		b.failedMS = 0
	case !gone:
		b.failedMS = nowMS
	}
}

// failedLately reports whether the provider has failed a moment ago, and not
// answered since.
func (b *stats) failedLately(nowMS int64) bool {
	return b.failedMS != 0 && nowMS-b.failedMS < unreadyAfterFailure.Milliseconds()
}

// latest is the pool's view, nil where there is none, and whether it is of now.
func (b *stats) latest(pool string, at time.Time) (known *view, fresh bool) {
	known = b.of(pool).latest
	return known, b.fresh > 0 && known != nil && at.Sub(known.at) < max(b.fresh, viewPerTook*known.took)
}

// listed takes a new view of a pool with so many taken slots.
func (b *stats) listed(pool string, v *view, taken int64) {
	p := b.of(pool)
	p.latest = v
	p.course.add(v.atMS, taken)
}

// How often the log tells of a pool that is as full as before, and at most.
const (
	tellAgain = 10 * time.Minute
	tellPause = time.Minute
)

// fills takes how full a pool is, and reports whether the log should tell: when it got
// worse, now and then while it is bad, and when there is room again.
func (b *stats) fills(pool string, f provider.Fullness, nowMS int64) bool {
	p := b.of(pool)
	p.fullness = f
	pause := tellAgain
	switch {
	case f == provider.Roomy && (p.told == "" || p.told == provider.Roomy):
		return false
	case p.told == "":
		pause = 0
	case f == provider.Roomy, f.WorseThan(p.told):
		pause = tellPause
	}
	if nowMS-p.toldMS < pause.Milliseconds() {
		return false
	}
	p.told, p.toldMS = f, nowMS
	return true
}

// fullest are the levels of pools that have little room.
func (b *stats) fullest() (levels []provider.Fullness) {
	for _, p := range b.pools {
		if p.fullness.WorseThan(provider.Roomy) && !slices.Contains(levels, p.fullness) {
			levels = append(levels, p.fullness)
		}
	}
	slices.Sort(levels)
	return levels
}

// prospect returns the future of a pool that has so many free slots: when it will be full, and
// until when it is fenced; 0: it is not.
func (b *stats) prospect(pool string, nowMS, free int64) (f leaseapi.Forecast, fencedUntil int64) {
	p := b.of(pool)
	if p.fencedUntil > nowMS {
		fencedUntil = p.fencedUntil
	}
	return p.course.forecast(nowMS, free), fencedUntil
}
