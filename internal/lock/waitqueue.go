package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kazahana/kazahana/internal/keyname"
	"github.com/kazahana/kazahana/internal/record"
)

// waitQueue is the queue for one lock on this host, a part of the host's core. Each of its
// events ends with step.
type waitQueue struct {
	core *hostCore
	name name

	waiters     []*waiter     // the store is asked for the first only
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
	undelivered error         // why the release that the queue waits for did not come through yet

	deafen   context.CancelFunc // ends the subscription to releases; nil: there is none
	hears    bool               // the store tells of releases
	missed   bool               // it has ended a subscription, and none has begun since
	listenAt time.Duration      // no subscription before
}

// waiter is a request in a queue.
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

// join puts a waiter at the end of its queue, or in the place of an equal request.
func (c *hostCore) join(w *waiter, wait time.Duration) *waitQueue {
	n := name{w.request.Tenant, w.request.Key}
	q := c.queues[n]
	if q == nil {
		q = &waitQueue{core: c, name: n}
		q.alarm.ring = q.step
	}
	if c.closed {
		w.answer(granted{}, ErrClosed)
		return q
	}
	c.queues[n] = q
	w.late, w.patient, w.until, w.joined = wait == 0, wait < 0, c.now+wait, q.asked
	place := len(q.waiters)
	for i := place - 1; i >= 0; i-- {
		if w.repeats(q.waiters[i]) {
			place = q.supersede(i, w)
		}
	}
	if q.waiters = slices.Insert(q.waiters, place, w); len(q.waiters) == 1 {
		q.forget()
	}
	q.admitHolder()
	if w.late {
		q.hurry()
	}
	q.step()
	return q
}

// timeUp is the event that a waiter's time is over.
func (q *waitQueue) timeUp(w *waiter) {
	w.late = true
	q.hurry()
	q.step()
}

// leave is the event that a waiter's caller has gone. An answer that came before stays.
func (q *waitQueue) leave(w *waiter, why error) {
	if w.gone {
		return
	}
	w.answer(granted{}, why)
	if w.asking != nil && w.asking.wait > 0 {
		w.asking.hangUp()
	}
	if w.asking == nil && !w.open {
		q.drop(w)
	}
	q.step()
}

// step begins the next call, or sets the alarm.
func (q *waitQueue) step() {
	c := q.core
	switch {
	case q.busy:
	case len(q.waiters) == 0:
		if c.queues[q.name] == q {
			delete(c.queues, q.name)
		}
		if q.deafen != nil {
			q.deafen()
		}
	case q.waiters[0].gone:
		q.clear(q.waiters[0])
	case q.tryAt > c.now:
		if q.deafen == nil && c.now >= q.listenAt {
			// A release before the subscription goes unnoticed, but the store is asked again soon.
			q.listenAt = c.now + listenEvery
			c.open++
			c.listeners = append(c.listeners, q)
		}
		at := q.tryAt
		if q.missed && q.deafen == nil {
			at = min(at, q.listenAt)
		}
		c.wakeAt(&q.alarm, at)
	default:
		q.ask(q.waiters[0])
	}
}

// ask asks the store for the first in the queue.
func (q *waitQueue) ask(w *waiter) {
	wait := q.storeWait(w)
	q.asked, q.stale, q.busy, w.sent = q.asked+1, false, true, q.core.now
	w.asking = q.core.begin(&call{request: w.request, wait: wait, values: w.values, ended: func(lease Lease, err error) {
		q.busy, w.asking = false, nil
		q.answered(w, lease, err, wait)
		if q.stale { // the answer may be from before
			q.forget()
		}
		q.step()
	}})
}

// storeWait is how long the store may wait by itself. Meanwhile the waits of others may
// end, so what to answer them has to be known for as long.
func (q *waitQueue) storeWait(w *waiter) time.Duration {
	known := q.known()
	if !q.core.waits || w.late || known == nil {
		return 0
	}
	wait := min(storeWait, known.remaining())
	if !w.patient {
		wait = min(wait, w.until-q.core.now)
	}
	return max(0, wait)
}

// answered takes the store's answer.
func (q *waitQueue) answered(w *waiter, lease Lease, err error, wait time.Duration) {
	c := q.core
	var held *HeldError
	var fenced *FencedError
	var stray *record.StrayError
	if IsAnswer(err) {
		q.failed, w.open = 0, false
		if err != nil {
			q.settleRepeated(w)
		}
	}
	switch {
	case err == nil:
		q.granted(w, lease)
	case errors.As(err, &held):
		q.held, q.heldAt = held, w.sent
		q.foundHeld(held.remaining())
		q.tryAt = c.now + askAgainIn(q.found, held.remaining(), q.hears, c.random())
		if waited := wait >= pollFirst && c.now-w.sent >= wait; waited || wait == 0 && c.waits && !q.over && q.known() != nil {
			q.tryAt = c.now // the store itself has waited, or will
		}
		q.answerHeld(held)
		q.keep(w)
	case errors.As(err, &fenced):
		left := time.Duration(fenced.RemainingMS) * time.Millisecond
		q.foundHeld(left)
		q.tryAt = c.now + askAgainIn(q.found, left, false, c.random())
		q.answerLate(err)
		q.keep(w)
	case IsAnswer(err):
		q.settle(w, granted{}, err)
	case errors.As(err, &stray):
		w.open = w.open || stray.Unsure
		w.ends = c.now + w.request.TTL()
		q.refuse(w, err)
	default:
		q.failed++
		if !errors.Is(err, record.ErrCrowded) {
			w.open, w.ends = true, c.now+w.request.TTL() // it was granted just now, at the latest
		}
		q.tryAt = c.now + c.retryIn(q.failed)
		if w.late {
			q.refuse(w, err)
		}
		q.answerLate(err)
	}
}

// foundHeld counts how often the lock was found held. At the lease's end the count begins
// anew, so that the store is asked often again.
func (q *waitQueue) foundHeld(remaining time.Duration) {
	over := remaining <= storeTick
	if over && !q.over {
		q.found = 0
	}
	q.found, q.over = q.found+1, over
}

// granted gives the lock to the first in the queue. If that is gone, it stays first
// until the lock is free again.
func (q *waitQueue) granted(w *waiter, lease Lease) {
	c := q.core
	q.found = 0
	// A store that has waited by itself adds the wait to the remaining time. The end is
	// right, but the term began after the wait: renewPart and marginPart are parts of it
	// alone.
	waited := min(lease.remaining()-w.request.TTL(), c.now-w.sent).Truncate(time.Millisecond)
	if waited > 0 {
		w.sent += waited
		lease.RemainingMS -= waited.Milliseconds()
	}
	q.held = &HeldError{
		Key: lease.Key, Owner: lease.Owner, Token: lease.Token, ExpiresMS: lease.ExpiresMS, RemainingMS: lease.RemainingMS,
		RequestID: keyname.KeptRequestID(w.request.RequestID),
	}
	q.heldAt = w.sent
	q.tryAt = w.sent + askAgainIn(1, q.held.remaining(), q.hears, c.random())
	if w.gone {
		w.open, w.ends = true, w.sent+w.request.TTL() // step clears up after it
	} else {
		q.settle(w, granted{lease, w.sent}, nil)
	}
	q.hurry()
	q.admitHolder()
}

// keep handles an answer that changes nothing.
func (q *waitQueue) keep(w *waiter) {
	if w.gone {
		q.drop(w)
	}
	q.admitHolder()
}

// clear releases the lease that a waiter who is gone may have been granted, unless the
// same request waits again, and inherits it. Meanwhile the waiter keeps its place, so that
// a repetition of its request does not get a lease that is about to be released.
//
// The release is repeated for as long as a lease from the last question can live. An
// acquire that arrives in the store even later stays unknown; its lease ends with its term.
func (q *waitQueue) clear(w *waiter) {
	cleared := func(error) {
		q.busy, q.undelivered = false, nil
		q.drop(w)
		q.news()
	}
	again := slices.IndexFunc(q.waiters, w.repeats)
	if w.open && again < 0 && !w.elsewhere {
		q.busy = true
		q.core.release(w.request, w.ends, q.undeliverable, cleared)
		return
	}
	if w.open && again >= 0 {
		q.waiters[again].inherit(w)
	}
	cleared(nil)
}

// undeliverable is the event that the release that the queue waits for did not come through. If it
// went astray, so would the requests of the others: they do not wait.
func (q *waitQueue) undeliverable(err error) {
	var stray *record.StrayError
	for _, w := range q.waiters {
		w.late = w.late || errors.As(err, &stray)
	}
	q.undelivered = err
	q.answerLate(err)
}

// repeats reports whether a waiter makes the same request as an earlier one.
func (w *waiter) repeats(earlier *waiter) bool {
	a, b := &w.request, &earlier.request
	return !earlier.gone && a.RequestID == b.RequestID && a.Owner == b.Owner && a.TTLMS == b.TTLMS
}

// supersede ends the wait of an earlier request that w repeats. A lease that the earlier
// one gets is w's: the store is asked once more for it. supersede returns w's place in the
// queue.
func (q *waitQueue) supersede(place int, w *waiter) int {
	earlier := q.waiters[place]
	asking := earlier.asking
	if asking != nil || earlier.open {
		w.inherit(earlier)
	}
	if asking != nil && asking.wait > 0 {
		asking.hangUp()
	}
	q.refuse(earlier, fmt.Errorf("%w: it was made again before it was answered", ErrRequestReused))
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
func (q *waitQueue) settleRepeated(w *waiter) {
	for _, again := range q.waiters {
		if again.request.LeaseID == w.request.LeaseID {
			again.open = false
		}
	}
}

// hurry answers the waiters whose time is over, or makes the next question due.
func (q *waitQueue) hurry() {
	switch known := q.known(); {
	case known != nil:
		q.answerLate(known)
	case q.undelivered != nil: // that may last until the end of a term
		q.answerLate(q.undelivered)
	default:
		q.tryAt = 0
	}
}

// forget drops what is known of the lock, and makes the next question due.
func (q *waitQueue) forget() {
	q.held, q.found, q.tryAt = nil, 0, 0
	q.stale = true
}

// known is the lease in the way as of now; nil if none is known.
func (q *waitQueue) known() *HeldError {
	if q.held == nil || q.stale {
		return nil
	}
	held := *q.held
	held.RemainingMS -= (q.core.now - q.heldAt).Milliseconds()
	if held.RemainingMS < 1 {
		return nil
	}
	return &held
}

// admitHolder puts the holder itself at the front when it asks again: it only gets the
// lease that it has already.
func (q *waitQueue) admitHolder() {
	if q.held == nil || len(q.waiters) == 0 || q.waiters[0].asking != nil {
		return
	}
	i := slices.IndexFunc(q.waiters, q.isHolder)
	if i < 0 {
		return
	}
	w := q.waiters[i]
	q.waiters = slices.Insert(slices.Delete(q.waiters, i, i+1), 0, w)
	q.tryAt = 0
}

// isHolder reports whether a waiter repeats the request that the lease was granted to.
func (q *waitQueue) isHolder(w *waiter) bool {
	return q.held != nil && q.held.isOf(w.request)
}

// answer ends a wait, once.
func (w *waiter) answer(g granted, err error) {
	if !w.gone {
		w.granted, w.err, w.gone = g, err, true
		close(w.done)
	}
}

// settle answers a waiter and takes it out of the queue.
func (q *waitQueue) settle(w *waiter, g granted, err error) {
	w.answer(g, err)
	q.drop(w)
}

func (q *waitQueue) drop(w *waiter) {
	if i := slices.Index(q.waiters, w); i >= 0 {
		q.waiters = slices.Delete(q.waiters, i, i+1)
	}
}

// late are the waiters whose time is over, apart from those that the store was asked for:
// they get its answer.
func (q *waitQueue) late() (late []*waiter) {
	for _, w := range q.waiters {
		if w.late && !w.gone && w.asking == nil && !w.open && !q.isHolder(w) {
			late = append(late, w)
		}
	}
	return late
}

// answerLate gives the late waiters an answer.
func (q *waitQueue) answerLate(err error) {
	for _, w := range q.late() {
		q.settle(w, granted{}, err)
	}
}

// answerHeld gives the late waiters the store's answer. It may be too old for one that came
// after the question; that one gets only what is still known.
func (q *waitQueue) answerHeld(answer *HeldError) {
	known := q.known()
	for _, w := range q.late() {
		switch {
		case w.joined < q.asked:
			q.settle(w, granted{}, answer)
		case known != nil:
			q.settle(w, granted{}, known)
		default:
			q.tryAt = 0
		}
	}
}

// refuse answers a waiter with an error. It stays in the queue only if a lease may have to
// be cleared up after it.
func (q *waitQueue) refuse(w *waiter, err error) {
	if w.gone {
		return
	}
	w.answer(granted{}, err)
	if w.asking == nil && !(w.open && w.anonymous) { // who knows its request ID can ask again
		q.drop(w)
	}
}

func (e *HeldError) remaining() time.Duration {
	return time.Duration(e.RemainingMS) * time.Millisecond
}
