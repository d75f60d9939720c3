package lock

import (
	"context"
	"errors"
	"fmt"
	"math"
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
	values    context.Context // the caller's, for its values besides its end: a trace
	anonymous bool            // only the host knows the request ID
	until     time.Duration   // the end of its wait

	late   bool          // its wait is over: the next answer will do
	gone   bool          // it was answered, or has left
	asking *call         // the store is being asked for it; it is the first in the queue
	open   bool          // the store was asked, with an unknown outcome
	clears bool          // its granted lease is being released
	sent   time.Duration // when the store was asked last
	ends   time.Duration // until then its granted lease lives, if open
	joined int           // how often the store had been asked when this one came

	granted granted // written before done is closed
	err     error
	done    chan struct{} // closed once
}

func newWaiter(ctx context.Context, r Request) *waiter {
	w := &waiter{values: ctx, request: r, anonymous: r.RequestID == "", done: make(chan struct{})}
	w.request.Op, w.request.Wait = Acquire, 0
	if r.LeaseID == "" {
		w.request.LeaseID = NewLeaseID()
	}
	if w.anonymous {
		w.request.RequestID = w.request.LeaseID // the host itself asks again
	}
	return w
}

// join puts a waiter at the end of its queue, or in the place of the waiter that it repeats.
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
	w.late, w.until, w.joined = wait == 0, c.now+wait, q.asked
	if wait < 0 {
		w.until = math.MaxInt64
	}
	if i := slices.IndexFunc(q.waiters, w.repeats); i >= 0 {
		q.takeOver(i, w)
	} else if q.waiters = append(q.waiters, w); len(q.waiters) == 1 {
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
	if w.asking != nil && w.asking.request.Wait > 0 {
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
	one := &call{request: w.request, values: w.values}
	one.request.Wait = q.storeWait(w)
	one.ended = func(lease Lease, err error) {
		first := q.waiters[0] // w, or a waiter that has taken over from it
		q.busy, first.asking = false, nil
		q.answered(first, one, lease, err)
		if q.stale { // the answer may be from before
			q.forget()
		}
		q.step()
	}
	q.asked, q.stale, q.busy, w.sent = q.asked+1, false, true, q.core.now
	w.asking = q.core.begin(one)
}

// storeWait is how long the store may wait by itself. Meanwhile the waits of others may
// end, so what to answer them has to be known for as long.
func (q *waitQueue) storeWait(w *waiter) time.Duration {
	if known := q.known(); q.core.waits && !w.late && known != nil {
		return max(0, min(storeWait, known.remaining(), w.until-q.core.now))
	}
	return 0
}

// answered takes the store's answer.
func (q *waitQueue) answered(w *waiter, one *call, lease Lease, err error) {
	c, wait := q.core, one.request.Wait
	var held *HeldError
	var fenced *FencedError
	var stray *record.StrayError
	if IsAnswer(err) {
		q.failed, w.open = 0, false
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
	case one.hungUp: // which says nothing of the store
		w.open, w.ends, q.tryAt = true, c.now+w.request.TTL(), 0
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

// clear releases the lease that a waiter may have been granted before it left. Meanwhile
// the waiter keeps its place, so that a repetition of its request does not get a lease
// that is about to be released.
//
// The release is repeated for as long as a lease from the last question can live. An
// acquire that arrives in the store even later stays unknown; its lease ends with its term.
func (q *waitQueue) clear(w *waiter) {
	cleared := func(error) {
		q.busy, q.undelivered = false, nil
		q.drop(w)
		q.news()
	}
	if !w.open || w.request.Elsewhere {
		cleared(nil)
		return
	}
	q.busy, w.clears = true, true
	q.core.release(w.request, w.ends, q.undeliverable, cleared)
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

// repeats reports whether a waiter makes the same request as an earlier one, and may have its
// lease.
func (w *waiter) repeats(earlier *waiter) bool {
	a, b := &w.request, &earlier.request
	return !earlier.clears && a.RequestID == b.RequestID && a.Owner == b.Owner && a.TTLMS == b.TTLMS
}

// takeOver puts w in the place of the earlier waiter that it repeats. The answer that this
// one is to get, and the lease that it may have been granted, are w's. A store that waits is
// asked anew, for as long as w does.
func (q *waitQueue) takeOver(place int, w *waiter) {
	earlier := q.waiters[place]
	w.asking, w.open, w.sent, w.ends = earlier.asking, earlier.open, earlier.sent, earlier.ends
	w.request.LeaseID = earlier.request.LeaseID
	q.waiters[place] = w
	if w.asking != nil && w.asking.request.Wait > 0 {
		w.asking.hangUp()
	}
	earlier.answer(granted{}, fmt.Errorf("%w: it was made again before it was answered", ErrRequestReused))
}

// news is the event that the lock may be free.
func (q *waitQueue) news() {
	q.forget()
	q.step()
}

// subscribed is the event that the store tells of releases from now on. It asks for releases
// since an earlier subscription ended.
func (q *waitQueue) subscribed() {
	q.hears = true
	if q.missed {
		q.missed = false
		q.news()
	}
}

// unsubscribed is the event that it does so no more. If the store has ended the
// subscription, a release may have gone unnoticed.
func (q *waitQueue) unsubscribed(byStore bool) {
	q.deafen, q.hears = nil, false
	if byStore {
		q.missed = true
		q.news()
	}
}

// hurry answers the waiters that are out of time, or makes the next question due.
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

// forget drops the knowledge of the lock, and makes the next question due.
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

// late returns the waiters that are out of time, apart from the ones that the store was asked
// for: they get its answer.
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

// answerHeld gives the late waiters the store's answer. It may be too old for a waiter that came
// after the question; that one gets only the present knowledge.
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
