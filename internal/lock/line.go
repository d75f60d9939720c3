package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/record"
)

// line is the queue for one lock on this host, a part of the host's core. Each of its
// events ends with step.
type line struct {
	core *hostCore
	name name

	queue       []*waiter     // the store is asked for the first only
	busy        bool          // the store is being asked, or something is being released
	held        *HeldError    // what stood in the way last; nil: not known
	heldAt      time.Duration // when that was so, or somewhat before
	tryAt       time.Duration // when to ask the store
	alarm       alarm         // at tryAt
	found       int           // how often in a row the lock was found held, anew at the end of its term
	over        bool          // it was found at its end: the store is late to see that
	asked       int           // how often the store was asked
	stale       bool          // since then there was news that the lock may be free
	failed      int           // how often in a row the store has failed
	undelivered error         // why the release that the line waits for did not come through yet

	deafen   context.CancelFunc // ends the subscription to releases; nil: there is none
	hears    bool               // the store tells of releases
	missed   bool               // it has ended a subscription, and none has begun since
	listenAt time.Duration      // no subscription before
}

// waiter is a request in a line.
type waiter struct {
	request   Request
	values    context.Context // the caller's, for what it carries besides its end: a trace
	anonymous bool            // only the host knows the request ID
	elsewhere bool            // as Wanted.Elsewhere
	patient   bool            // it waits without a limit
	until     time.Duration   // the end of its wait, where it has one

	late   bool          // its wait is over: the next answer will do
	gone   bool          // it was answered, or has left
	asking *call         // the store is being asked for it
	open   bool          // the store was asked, with an unknown outcome
	sent   time.Duration // when the store was asked last
	ends   time.Duration // until then what it was granted lives, if open
	joined int           // how often the store had been asked when this one came

	granted granted // written before done is closed
	err     error
	done    chan struct{} // closed once
}

func newWaiter(ctx context.Context, want Wanted) *waiter {
	w := &waiter{values: ctx, elsewhere: want.Elsewhere, anonymous: want.RequestID == "", done: make(chan struct{})}
	w.request = Request{
		Op: Acquire, Tenant: want.Tenant, Key: want.Key, Owner: want.Owner,
		RequestID: want.RequestID, LeaseID: want.LeaseID, TTLMS: want.TTL.Milliseconds(),
	}
	if w.request.LeaseID == "" {
		w.request.LeaseID = NewLeaseID()
	}
	if w.anonymous {
		w.request.RequestID = w.request.LeaseID // the host itself asks again
	}
	return w
}

// join puts a waiter at the end of its line, or in the place of an equal request.
func (c *hostCore) join(w *waiter, wait time.Duration) *line {
	n := name{w.request.Tenant, w.request.Key}
	l := c.lines[n]
	if l == nil {
		l = &line{core: c, name: n}
		l.alarm.ring = l.step
	}
	if c.closed {
		w.answer(granted{}, ErrClosed)
		return l
	}
	c.lines[n] = l
	w.late, w.patient, w.until, w.joined = wait == 0, wait < 0, c.now+wait, l.asked
	place := len(l.queue)
	for i := place - 1; i >= 0; i-- {
		if w.repeats(l.queue[i]) {
			place = l.supersede(i, w)
		}
	}
	if l.queue = slices.Insert(l.queue, place, w); len(l.queue) == 1 {
		l.forget()
	}
	l.admitHolder()
	if w.late {
		l.hurry()
	}
	l.step()
	return l
}

// timeUp is the event that a waiter's time is over.
func (l *line) timeUp(w *waiter) {
	w.late = true
	l.hurry()
	l.step()
}

// leave is the event that a waiter's caller has gone. An answer that came before stays.
func (l *line) leave(w *waiter, why error) {
	if w.gone {
		return
	}
	w.answer(granted{}, why)
	if w.asking != nil && w.asking.wait > 0 {
		w.asking.hangUp()
	}
	if w.asking == nil && !w.open {
		l.drop(w)
	}
	l.step()
}

// step begins the next call, or sets the alarm.
func (l *line) step() {
	c := l.core
	switch {
	case l.busy:
	case len(l.queue) == 0:
		if c.lines[l.name] == l {
			delete(c.lines, l.name)
		}
		if l.deafen != nil {
			l.deafen()
		}
	case l.queue[0].gone:
		l.clear(l.queue[0])
	case l.tryAt > c.now:
		if l.deafen == nil && c.now >= l.listenAt {
			// A release before the subscription goes unnoticed, but the store is asked again soon.
			l.listenAt = c.now + listenEvery
			c.open++
			c.listeners = append(c.listeners, l)
		}
		at := l.tryAt
		if l.missed && l.deafen == nil {
			at = min(at, l.listenAt)
		}
		c.wakeAt(&l.alarm, at)
	default:
		l.ask(l.queue[0])
	}
}

// ask asks the store for the first in line.
func (l *line) ask(w *waiter) {
	wait := l.storeWait(w)
	l.asked, l.stale, l.busy, w.sent = l.asked+1, false, true, l.core.now
	w.asking = l.core.begin(&call{request: w.request, wait: wait, values: w.values, ended: func(lease Lease, err error) {
		l.busy, w.asking = false, nil
		l.answered(w, lease, err, wait)
		if l.stale { // the answer may be from before
			l.forget()
		}
		l.step()
	}})
}

// storeWait is how long the store may wait by itself. Meanwhile the waits of others may
// end, so what to answer them has to be known for as long.
func (l *line) storeWait(w *waiter) time.Duration {
	known := l.known()
	if !l.core.waits || w.late || known == nil {
		return 0
	}
	wait := min(storeWait, known.remaining())
	if !w.patient {
		wait = min(wait, w.until-l.core.now)
	}
	return max(0, wait)
}

// answered takes the store's answer.
func (l *line) answered(w *waiter, lease Lease, err error, wait time.Duration) {
	c := l.core
	var held *HeldError
	var fenced *FencedError
	var stray *record.StrayError
	if IsAnswer(err) {
		l.failed, w.open = 0, false
		if err != nil {
			l.settleRepeated(w)
		}
	}
	switch {
	case err == nil:
		l.granted(w, lease)
	case errors.As(err, &held):
		l.held, l.heldAt = held, w.sent
		l.foundHeld(held.remaining())
		l.tryAt = c.now + askAgainIn(l.found, held.remaining(), l.hears, c.random())
		if waited := wait >= pollFirst && c.now-w.sent >= wait; waited || wait == 0 && c.waits && !l.over && l.known() != nil {
			l.tryAt = c.now // the store itself has waited, or will
		}
		l.answerHeld(held)
		l.keep(w)
	case errors.As(err, &fenced):
		left := time.Duration(fenced.RemainingMS) * time.Millisecond
		l.foundHeld(left)
		l.tryAt = c.now + askAgainIn(l.found, left, false, c.random())
		l.answerLate(err)
		l.keep(w)
	case IsAnswer(err):
		l.settle(w, granted{}, err)
	case errors.As(err, &stray):
		w.open = w.open || stray.Unsure
		w.ends = c.now + w.request.TTL()
		l.refuse(w, err)
	default:
		l.failed++
		if !errors.Is(err, record.ErrCrowded) {
			w.open, w.ends = true, c.now+w.request.TTL() // it was granted just now, at the latest
		}
		l.tryAt = c.now + c.retryIn(l.failed)
		if w.late {
			l.refuse(w, err)
		}
		l.answerLate(err)
	}
}

// foundHeld counts how often the lock was found held. At the lease's end the count begins
// anew, so that the store is asked often again.
func (l *line) foundHeld(remaining time.Duration) {
	over := remaining <= storeTick
	if over && !l.over {
		l.found = 0
	}
	l.found, l.over = l.found+1, over
}

// granted gives the lock to the first in line. If that is gone, it stays first
// until the lock is free again.
func (l *line) granted(w *waiter, lease Lease) {
	c := l.core
	l.found = 0
	// A store that has waited by itself adds the wait to the remaining time. The end is
	// right, but the term began after the wait: renewPart and marginPart are parts of it
	// alone.
	waited := min(lease.remaining()-w.request.TTL(), c.now-w.sent).Truncate(time.Millisecond)
	if waited > 0 {
		w.sent += waited
		lease.RemainingMS -= waited.Milliseconds()
	}
	l.held = &HeldError{
		Key: lease.Key, Owner: lease.Owner, Token: lease.Token, ExpiresMS: lease.ExpiresMS, RemainingMS: lease.RemainingMS,
		RequestID: w.request.RequestID,
	}
	l.heldAt = w.sent
	l.tryAt = w.sent + askAgainIn(1, l.held.remaining(), l.hears, c.random())
	if w.gone {
		w.open, w.ends = true, w.sent+w.request.TTL() // step clears up after it
	} else {
		l.settle(w, granted{lease, w.sent}, nil)
	}
	l.hurry()
	l.admitHolder()
}

// keep handles an answer that changes nothing.
func (l *line) keep(w *waiter) {
	if w.gone {
		l.drop(w)
	}
	l.admitHolder()
}

// clear releases the lease that a waiter who is gone may have been granted, unless the
// same request waits again, and inherits it. Meanwhile the waiter keeps its place, so that
// a repetition of its request does not get a lease that is about to be released.
//
// The release is repeated for as long as a lease from the last question can live. An
// acquire that arrives in the store even later stays unknown; its lease ends with its term.
func (l *line) clear(w *waiter) {
	cleared := func(error) {
		l.busy, l.undelivered = false, nil
		l.drop(w)
		l.news()
	}
	again := slices.IndexFunc(l.queue, w.repeats)
	if w.open && again < 0 && !w.elsewhere {
		l.busy = true
		l.core.release(w.request, w.ends, l.undeliverable, cleared)
		return
	}
	if w.open && again >= 0 {
		l.queue[again].inherit(w)
	}
	cleared(nil)
}

// undeliverable is the event that the release that the line waits for did not come through. If it
// went astray, so would the requests of the others: they do not wait.
func (l *line) undeliverable(err error) {
	var stray *record.StrayError
	for _, w := range l.queue {
		w.late = w.late || errors.As(err, &stray)
	}
	l.undelivered = err
	l.answerLate(err)
}

// repeats reports whether a waiter makes the same request as an earlier one.
func (w *waiter) repeats(earlier *waiter) bool {
	a, b := &w.request, &earlier.request
	return !earlier.gone && a.RequestID == b.RequestID && a.Owner == b.Owner && a.TTLMS == b.TTLMS
}

// supersede ends the wait of an earlier request that w repeats. A lease that the earlier
// one gets is w's: the store is asked once more for it. supersede returns w's place in the
// line.
func (l *line) supersede(place int, w *waiter) int {
	earlier := l.queue[place]
	asking := earlier.asking
	if asking != nil || earlier.open {
		w.inherit(earlier)
	}
	if asking != nil && asking.wait > 0 {
		asking.hangUp()
	}
	l.refuse(earlier, fmt.Errorf("%w: it was made again before it was answered", ErrRequestReused))
	if asking != nil {
		return place + 1
	}
	return place
}

// inherit makes the outcome of an earlier request w's. w takes its lease ID, under which
// the lease is released if w leaves too.
func (w *waiter) inherit(earlier *waiter) {
	w.open, w.ends, w.request.LeaseID = true, earlier.ends, earlier.request.LeaseID
}

// settleRepeated is the event that w was refused. Its repetitions have the same outcome.
func (l *line) settleRepeated(w *waiter) {
	for _, again := range l.queue {
		if again.request.LeaseID == w.request.LeaseID {
			again.open = false
		}
	}
}

// hurry answers the waiters whose time is over, or makes the next question due.
func (l *line) hurry() {
	switch known := l.known(); {
	case known != nil:
		l.answerLate(known)
	case l.undelivered != nil: // that may last until the end of a term
		l.answerLate(l.undelivered)
	default:
		l.tryAt = 0
	}
}

// forget drops what is known of the lock, and makes the next question due.
func (l *line) forget() {
	l.held, l.found, l.tryAt = nil, 0, 0
	l.stale = true
}

// known is the lease in the way as of now; nil if none is known.
func (l *line) known() *HeldError {
	if l.held == nil || l.stale {
		return nil
	}
	held := *l.held
	held.RemainingMS -= (l.core.now - l.heldAt).Milliseconds()
	if held.RemainingMS < 1 {
		return nil
	}
	return &held
}

// admitHolder puts the holder itself at the front when it asks again: it only gets the
// lease that it has already.
func (l *line) admitHolder() {
	if l.held == nil || len(l.queue) == 0 || l.queue[0].asking != nil {
		return
	}
	i := slices.IndexFunc(l.queue, l.isHolder)
	if i < 0 {
		return
	}
	w := l.queue[i]
	l.queue = slices.Insert(slices.Delete(l.queue, i, i+1), 0, w)
	l.tryAt = 0
}

// isHolder reports whether a waiter repeats the request that the lease was granted to.
func (l *line) isHolder(w *waiter) bool {
	return l.held != nil && w.request.RequestID == l.held.RequestID && w.request.Owner == l.held.Owner
}

// answer ends a wait, once.
func (w *waiter) answer(g granted, err error) {
	if !w.gone {
		w.granted, w.err, w.gone = g, err, true
		close(w.done)
	}
}

// settle answers a waiter and takes it out of the line.
func (l *line) settle(w *waiter, g granted, err error) {
	w.answer(g, err)
	l.drop(w)
}

func (l *line) drop(w *waiter) {
	if i := slices.Index(l.queue, w); i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
	}
}

// late are the waiters whose time is over, apart from those that the store was asked for:
// they get its answer.
func (l *line) late() (late []*waiter) {
	for _, w := range l.queue {
		if w.late && !w.gone && w.asking == nil && !w.open && !l.isHolder(w) {
			late = append(late, w)
		}
	}
	return late
}

// answerLate gives the late waiters an answer.
func (l *line) answerLate(err error) {
	for _, w := range l.late() {
		l.settle(w, granted{}, err)
	}
}

// answerHeld gives the late waiters the store's answer. It may be too old for one that came
// after the question; that one gets only what is still known.
func (l *line) answerHeld(answer *HeldError) {
	known := l.known()
	for _, w := range l.late() {
		switch {
		case w.joined < l.asked:
			l.settle(w, granted{}, answer)
		case known != nil:
			l.settle(w, granted{}, known)
		default:
			l.tryAt = 0
		}
	}
}

// refuse answers a waiter with an error. It stays in the line only if a lease may have to
// be cleared up after it.
func (l *line) refuse(w *waiter, err error) {
	if w.gone {
		return
	}
	w.answer(granted{}, err)
	if w.asking == nil && !(w.open && w.anonymous) { // who knows its request ID can ask again
		l.drop(w)
	}
}

func (e *HeldError) remaining() time.Duration {
	return time.Duration(e.RemainingMS) * time.Millisecond
}
