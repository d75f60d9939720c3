package generator

import (
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/lease"
)

const (
	// maxNap bounds how long waiters trust the clock to reach a moment: it may
	// be set in between.
	maxNap = 100 * time.Millisecond
	// catchUpMS bounds how far back milliseconds that passed unused are still
	// given to callers who were waiting for them. Timers fire late by up to a
	// millisecond or two; without this every late one would cost throughput.
	catchUpMS = 8
)

// Reading is a reading of the believed clock, in Unix nanoseconds. One reading
// serves for a burst of requests that have arrived already; it is not to be
// kept for longer. The zero value has the clock read for the request.
type Reading int64

func (r Reading) ms() int64 { return int64(r) / int64(time.Millisecond) }

// Instant is what the clocks show when something happens.
type Instant struct {
	Clock Reading   // the believed time
	Mono  time.Time // by a clock that cannot be set, for timeouts
}

// Queue is a Core and the requests that wait for it. It has no lock, no clock and
// no timer: each call gets the time, Ended has the requests that have ended, and
// Nap is how long nothing will happen by itself.
type Queue struct {
	core   *Core
	newest Reading // the last reading that was used, but for readings within the run
	// [runFrom, runUntil) are the readings that get IDs of the core's run: the
	// millisecond in use. runUntil is 0 where none does, as while a request
	// waits, and after Close. The run's own end closes it too.
	runFrom, runUntil Reading
	// waiting has the requests that wait, the next one to be served first. A connection waits
	// with one request at a time, so serving requests in a circle serves connections so.
	waiting []*Pending
	joined  Reading // when the last one joined; no earlier millisecond is made up for
	stop    Stop    // why the queue waits
	// clockSince is when the queue began to wait for the clock; zero while it
	// does not.
	clockSince time.Time
	// deadline is no later than the first timeout of a waiting request; it may be the timeout of
	// a request that has left.
	deadline time.Time
	closed   bool

	ended []*Pending    // since the last call of Ended
	nap   time.Duration // until Serve is due; negative: only a change helps
}

// hasRun reports whether readings like at get so many IDs of the run.
func (q *Queue) hasRun(at Reading, n int64) bool {
	return q.runFrom <= at && at < q.runUntil && 0 < n && n <= q.core.left()
}

// overtaken reports whether a reading that was made before now is of no use: one
// before the newest one in use would look like a clock that went back, and while
// the clock is known to have gone back, none from before that counts.
func (q *Queue) overtaken(at Reading) bool { return at < q.newest || q.core.behind }

// Take appends to dst as many of the IDs as the millisecond of the reading gives.
// It is for requests before which none waits; stop then says why some are missing.
func (q *Queue) Take(at Reading, want int64, regularOnly bool, dst []Range) (_ []Range, need int64, stop Stop) {
	q.newest, q.runUntil = at, 0
	for want > 0 {
		var r Range
		if r, stop = q.core.Take(at.ms(), want, !regularOnly); r.Count == 0 {
			return dst, want, stop
		}
		dst, want = append(dst, r), want-r.Count
	}
	q.letRun(at)
	return dst, 0, Stop{}
}

// letRun lets readings of the millisecond in use take from the run without a
// further look, after at, one of them, has done so, and while no request waits.
func (q *Queue) letRun(at Reading) {
	if ms := q.core.ms; at.ms() == ms && q.core.run.kind == Regular {
		q.runFrom, q.runUntil = Reading(ms*int64(time.Millisecond)), Reading((ms+1)*int64(time.Millisecond))
	}
}

// Join adds a request at the end, and serves the queue. stop is why the request
// has to wait, if it is the first.
func (q *Queue) Join(now Instant, p *Pending, stop Stop) {
	q.runUntil = 0
	if len(q.waiting) == 0 {
		q.stop = stop
	}
	p.start, p.deadline = now.Mono, now.Mono.Add(p.req.Timeout)
	if len(q.waiting) == 0 || p.deadline.Before(q.deadline) {
		q.deadline = p.deadline
	}
	q.waiting = append(q.waiting, p)
	q.joined = max(q.joined, now.Clock)
	q.Serve(now)
	p.cause = q.stop.Wait
}

// Serve gives waiting requests the free IDs, and ends the wait of requests that are out of time.
// It is due after Nap, and when the leases change.
func (q *Queue) Serve(now Instant) {
	q.nap = -1
	if len(q.waiting) == 0 {
		return
	}
	q.newest = now.Clock
	q.catchUp(now)
	stop, served := q.share(now, now.Clock.ms(), false)
	if served {
		return
	}
	q.expire(now)
	if len(q.waiting) > 0 {
		q.nap = q.deadline.Sub(now.Mono)
	}
	q.nap = min(q.nap, max(time.Duration(stop.UntilMS*int64(time.Millisecond)-int64(now.Clock)), 0), maxNap)
}

// expire ends the wait of requests that are out of time.
func (q *Queue) expire(now Instant) {
	if now.Mono.Before(q.deadline) {
		return
	}
	q.deadline = time.Time{}
	q.waiting = slices.DeleteFunc(q.waiting, func(p *Pending) bool {
		if !now.Mono.Before(p.deadline) {
			q.end(p, &TimeoutError{Waited: now.Mono.Sub(p.start), For: q.stop.Wait})
			return true
		}
		if q.deadline.IsZero() || p.deadline.Before(q.deadline) {
			q.deadline = p.deadline
		}
		return false
	})
}

// catchUp gives out the milliseconds that passed unused since the last ID,
// while all requests here were waiting for them. Only regular IDs are made up for:
// a lease or the right time, missing then, may be here now.
func (q *Queue) catchUp(now Instant) {
	nowMS := now.Clock.ms()
	for at := max(nowMS-catchUpMS, q.core.ms+1, q.joined.ms()); at < nowMS && len(q.waiting) > 0; at++ {
		if stop, served := q.share(now, at, true); served || stop.Wait != WaitSequence {
			return
		}
	}
}

// share deals out one millisecond in rounds: in each, every request gets an equal part of
// the rest. So a large batch leaves room for single IDs, and the request that came away
// short is the first one next time. It reports whether all are served, or else why not. A
// late millisecond yields regular IDs or nothing, no errors.
func (q *Queue) share(now Instant, atMS int64, late bool) (stop Stop, served bool) {
	for len(q.waiting) > 0 {
		requests := int64(len(q.waiting))
		part := max((q.core.cfg.MaxThroughput-q.usedAt(atMS))/requests, 1)
		for range requests {
			if stop, dry := q.turn(now, atMS, part, late); dry {
				q.stop = stop
				return stop, false
			}
		}
	}
	return Stop{}, true
}

// turn gives a part of the millisecond to the request that is next. dry says that there is
// nothing more.
func (q *Queue) turn(now Instant, atMS, part int64, late bool) (stop Stop, dry bool) {
	p := q.waiting[0]
	r, stop := q.core.Take(atMS, min(p.need, part), !p.req.RegularOnly && !late)
	if r.Count == 0 && (late || stop.Err == nil) {
		if stop.Err = q.overdue(now, p, stop); late || stop.Err == nil {
			return stop, true
		}
	}
	if r.Count > 0 {
		p.ranges = append(p.ranges, r)
		p.need -= r.Count
	}
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	if stop.Err == nil && p.need > 0 {
		q.waiting = append(q.waiting, p)
	} else {
		q.end(p, stop.Err)
	}
	return Stop{}, false
}

func (q *Queue) usedAt(ms int64) int64 {
	if q.core.ms < ms {
		return 0
	}
	return q.core.used
}

// overdue is the error of a request that the clock has kept longer than
// max_backward: a clock that stands still shows no growing distance.
func (q *Queue) overdue(now Instant, p *Pending, stop Stop) error {
	limit := q.core.cfg.MaxBackwardMS
	if stop.Wait != WaitClock {
		q.clockSince = time.Time{}
		return nil
	}
	if q.clockSince.IsZero() {
		q.clockSince = now.Mono
	}
	since := q.clockSince
	if p.start.After(since) {
		since = p.start
	}
	waited := now.Mono.Sub(since).Milliseconds()
	if limit < 0 || waited <= limit {
		return nil
	}
	return &ClockBackwardError{BackwardMS: waited, LimitMS: limit, Earlier: q.core.ms < q.core.floor}
}

// Leave ends the wait of one request.
func (q *Queue) Leave(p *Pending, err error) {
	if at := slices.Index(q.waiting, p); at >= 0 {
		q.waiting = slices.Delete(q.waiting, at, at+1)
		q.end(p, err)
	}
}

func (q *Queue) end(p *Pending, err error) {
	if err != nil {
		p.ranges = nil
	}
	p.err, p.ended = err, true
	q.ended = append(q.ended, p)
}

// Update replaces the leases. A reading from before may be from before the new
// leases begin, so none counts any more.
func (q *Queue) Update(now Instant, held []lease.Lease, cached *lease.Lease, cause error) {
	q.core.SetLeases(held, cached, cause)
	q.newest = now.Clock
	if cause != nil {
		q.core.EndStartup()
	}
	q.Serve(now)
}

// Close fails waiting requests.
func (q *Queue) Close() {
	q.closed, q.runUntil, q.nap = true, 0, -1
	q.waiting = slices.DeleteFunc(q.waiting, func(p *Pending) bool {
		q.end(p, ErrStopped)
		return true
	})
}
