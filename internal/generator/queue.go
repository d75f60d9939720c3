package generator

import "time"

// serve gives the waiters what there is, and sets the timer for the rest. It
// is called with the lock held: when a caller joins, when the timer fires, and
// when the leases change. Those who wait need no goroutine that runs.
func (g *Generator) serve() {
	if g.stopped || len(g.queue) == 0 {
		return
	}
	now := g.clock.NowNS()
	nowMS := now / int64(time.Millisecond)
	g.catchUp(nowMS)
	if stop, served := g.share(nowMS, false); !served {
		g.wakeAt(stop.UntilMS, now)
	}
}

// catchUp gives out the milliseconds that passed unused since the last ID,
// while everyone here was waiting for them. Only regular IDs are made up for:
// what was missing then, a lease or the right time, may be here now.
func (g *Generator) catchUp(nowMS int64) {
	for at := max(nowMS-catchUpMS, g.core.ms+1, g.joined/int64(time.Millisecond)); at < nowMS && len(g.queue) > 0; at++ {
		if stop, served := g.share(at, true); served || stop.Wait != WaitSequence {
			return
		}
	}
}

// share deals out one millisecond in rounds: in each, everyone who waits gets
// an equal part of what is left, so that a large batch leaves room for single
// IDs, and whoever stands first next time is the one who came away short. It
// reports whether everyone is served, or else why not. A late millisecond
// yields regular IDs or nothing, no errors.
func (g *Generator) share(atMS int64, late bool) (stop Stop, served bool) {
	for len(g.queue) > 0 {
		part := max((g.core.cfg.MaxThroughput-g.usedAt(atMS))/int64(len(g.queue)), 1)
		for range len(g.queue) {
			w := g.queue[0]
			r, stop := g.take(atMS, min(w.need, part), !w.req.RegularOnly && !late)
			if r.Count == 0 && (late || stop.Err == nil) {
				if stop.Err = g.overdue(w, stop); late || stop.Err == nil {
					g.stop = stop
					return stop, false
				}
			}
			g.queue = g.queue[1:]
			if r.Count > 0 {
				w.ranges = append(w.ranges, r)
				w.need -= r.Count
			}
			if stop.Err != nil || w.need == 0 {
				w.end(stop.Err)
			} else {
				g.queue = append(g.queue, w)
			}
		}
	}
	g.queue = nil // let the backing array go
	return Stop{}, true
}

func (g *Generator) usedAt(ms int64) int64 {
	if g.core.ms < ms {
		return 0
	}
	return g.core.used
}

// overdue is the error of a waiter whom the clock has kept longer than
// max_backward: a clock that stands still shows no growing distance.
func (g *Generator) overdue(w *waiter, stop Stop) error {
	limit := g.core.cfg.MaxBackwardMS
	if stop.Wait != WaitClock {
		g.clockSince = time.Time{}
		return nil
	}
	if g.clockSince.IsZero() {
		g.clockSince = time.Now()
	}
	since := g.clockSince
	if w.start.After(since) {
		since = w.start
	}
	waited := time.Since(since).Milliseconds()
	if limit < 0 || waited <= limit {
		return nil
	}
	return &ClockBackwardError{BackwardMS: waited, LimitMS: limit}
}

// end tells the waiter that it has what it gets.
func (w *waiter) end(err error) {
	if err != nil {
		w.ranges = nil
	}
	w.err, w.ended = err, true
	close(w.done)
}

// wakeAt arranges for serve to run when the clock shows untilMS, or a little
// later. 0 means that only a change of the leases helps.
func (g *Generator) wakeAt(untilMS, nowNS int64) {
	if untilMS == 0 {
		return
	}
	nap := min(max(time.Duration(untilMS*int64(time.Millisecond)-nowNS), 0), maxNap)
	if g.wake == nil {
		g.wake = time.AfterFunc(nap, g.woken)
		return
	}
	g.wake.Reset(nap)
}

func (g *Generator) woken() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.serve()
}
