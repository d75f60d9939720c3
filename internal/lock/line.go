package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// line is those who wait for one lock on this host. It has a goroutine of its own
// for as long as there are any.
type line struct {
	host *Host
	name name

	// Guarded by host.mu.
	queue  []*waiter     // only the first is asked for
	held   *HeldError    // what stood in the way last; nil: not known
	heldAt time.Duration // Elapsed: when that was so, or somewhat before
	tryAt  time.Duration // Elapsed: when to ask the store
	found  int           // how often in a row the lock was found held, anew at the end of its term
	over   bool          // it was found with next to nothing left: the store is late to see the end

	poked  chan struct{} // buffer of 1: look again
	failed int           // how often in a row the store has failed

	tokens      <-chan struct{} // of the store's Notifier; nil: not subscribed
	unsubscribe context.CancelFunc
	subscribeAt time.Duration // Elapsed: not before
}

// waiter is one who waits.
type waiter struct {
	request   Request
	values    context.Context // the caller's, for what it carries besides its end: a trace
	anonymous bool            // nobody but the host knows the request ID
	elsewhere bool            // as Wanted.Elsewhere
	patient   bool            // it waits without a limit
	until     time.Duration   // Elapsed: the end of its wait, where it has one

	// Guarded by host.mu.
	late   bool               // its wait is over: the next answer will do
	gone   bool               // nobody waits any more: it was answered, or has left
	asking bool               // the store is being asked
	open   bool               // the store was asked, and nobody knows what it did
	sent   time.Duration      // Elapsed: when it was asked last
	hangUp context.CancelFunc // ends what the store waits for by itself

	granted granted // written before done is closed
	err     error
	done    chan struct{} // closed under host.mu, once
}

// join puts a waiter at the end of its line, or where it stands already.
func (h *Host) join(w *waiter) (*line, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, ErrClosed
	}
	n := name{w.request.Tenant, w.request.Key}
	l := h.lines[n]
	if l == nil {
		l = &line{host: h, name: n, poked: make(chan struct{}, 1), unsubscribe: func() {}}
		h.lines[n] = l
		h.work.Go(l.run)
	}
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
	return l, nil
}

// repeats reports whether one asks for what another asks for already.
func (w *waiter) repeats(earlier *waiter) bool {
	a, b := &w.request, &earlier.request
	return !earlier.gone && a.RequestID == b.RequestID && a.Owner == b.Owner && a.TTLMS == b.TTLMS
}

// supersede ends the wait of one who asks again by w, and hears nothing any more
// the first time: once w is answered, the first is granted nothing. It returns the
// place in the line, which w takes over. Under host.mu.
func (l *line) supersede(place int, w *waiter) int {
	earlier := l.queue[place]
	if earlier.asking || earlier.open {
		w.open, w.sent = true, earlier.sent // the store is to tell what became of it
	}
	if !earlier.asking {
		l.refuse(earlier, fmt.Errorf("%w: it was made again before it was answered", ErrRequestReused))
		return place
	}
	if earlier.late = true; earlier.hangUp != nil {
		earlier.hangUp()
	}
	return place + 1
}

// hurry answers those who cannot wait, or has the store be asked for an answer.
// Under host.mu.
func (l *line) hurry() {
	if known := l.known(); known != nil {
		l.answerLate(known)
	} else {
		l.tryAt = 0
	}
	l.poke()
}

// forget has the store be asked at once. Under host.mu.
func (l *line) forget() {
	l.held, l.found, l.tryAt = nil, 0, 0
	l.poke()
}

// known is what stands in the way as of now, as far as that is known. Under
// host.mu.
func (l *line) known() *HeldError {
	if l.held == nil {
		return nil
	}
	held := *l.held
	held.RemainingMS -= (l.host.clock.Elapsed() - l.heldAt).Milliseconds()
	if held.RemainingMS < 1 {
		return nil
	}
	return &held
}

// admitHolder lets the holder itself ask before all others, because it is only
// told again what it has. Under host.mu.
func (l *line) admitHolder() {
	if l.held == nil || len(l.queue) == 0 || l.queue[0].asking {
		return
	}
	i := slices.IndexFunc(l.queue, l.isHolder)
	if i < 0 {
		return
	}
	w := l.queue[i]
	l.queue = slices.Insert(slices.Delete(l.queue, i, i+1), 0, w)
	l.tryAt = 0
	l.poke()
}

// isHolder reports whether one asks again for what it has already. Under host.mu.
func (l *line) isHolder(w *waiter) bool {
	return l.held != nil && w.request.RequestID == l.held.RequestID && w.request.Owner == l.held.Owner
}

// poke has the goroutine look again.
func (l *line) poke() {
	select {
	case l.poked <- struct{}{}:
	default:
	}
}

// answer ends the wait of one. Under host.mu.
func (w *waiter) answer(g granted, err error) {
	w.granted, w.err, w.gone = g, err, true
	close(w.done)
}

// settle answers one, and takes it out of the line. Under host.mu.
func (l *line) settle(w *waiter, g granted, err error) {
	w.answer(g, err)
	l.drop(w)
}

func (l *line) drop(w *waiter) {
	if i := slices.Index(l.queue, w); i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
	}
	l.poke()
}

// answerLate gives those who cannot wait what is known; but not one for whom the
// store was asked, which is told what became of that. Under host.mu.
func (l *line) answerLate(err error) {
	for _, w := range slices.Clone(l.queue) {
		if w.late && !w.gone && !w.asking && !w.open && !l.isHolder(w) {
			l.settle(w, granted{}, err)
		}
	}
}

// timeUp notes that the wait of one is over.
func (l *line) timeUp(w *waiter) {
	l.host.mu.Lock()
	defer l.host.mu.Unlock()
	w.late = true
	l.hurry()
}

// leave notes that nobody waits for the answer any more, and reports false when
// there is one.
func (l *line) leave(w *waiter) bool {
	l.host.mu.Lock()
	defer l.host.mu.Unlock()
	select {
	case <-w.done:
		return false
	default:
	}
	w.gone = true
	if w.hangUp != nil {
		w.hangUp()
	}
	if !w.asking && !w.open {
		l.drop(w)
	}
	l.poke()
	return true
}

func (l *line) run() {
	defer func() { l.unsubscribe() }()
	for {
		switch w, what, pause := l.next(); what {
		case leaveLine:
			return
		case sleepInLine:
			l.sleep(pause)
		case clearUp:
			l.clear(w)
		case askStore:
			l.ask(w)
		}
	}
}

// step is what a line does next.
type step uint8

const (
	leaveLine   step = iota + 1 // nobody is left
	sleepInLine                 // it is not time yet
	clearUp                     // the first is gone, and has left something behind
	askStore                    // for the first
)

func (l *line) next() (w *waiter, what step, pause time.Duration) {
	l.host.mu.Lock()
	defer l.host.mu.Unlock()
	if len(l.queue) == 0 {
		delete(l.host.lines, l.name)
		return nil, leaveLine, 0
	}
	w = l.queue[0]
	if w.gone {
		return w, clearUp, 0
	}
	if pause = l.tryAt - l.host.clock.Elapsed(); pause > 0 {
		return nil, sleepInLine, pause
	}
	w.asking = true
	return w, askStore, 0
}

// refuse answers one with an error, and leaves it in the line only if there is
// something to clear up after it. Under host.mu.
func (l *line) refuse(w *waiter, err error) {
	if w.gone {
		return
	}
	w.answer(granted{}, err)
	if !w.asking && !(w.open && w.anonymous) { // who knows its request ID can ask again
		l.drop(w)
	}
}

// sleep waits until it is time, or something happens.
func (l *line) sleep(pause time.Duration) {
	l.subscribe()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.poked:
	case <-l.host.life.Done():
	case _, ok := <-l.tokens:
		if !ok {
			l.unsubscribe()
			l.tokens = nil
		}
		l.host.mu.Lock()
		l.tryAt = 0
		l.host.mu.Unlock()
	}
}

// subscribe asks the store to tell of releases. One before that goes unnoticed,
// but the store is asked again soon: not being subscribed, the line polls.
func (l *line) subscribe() {
	now := l.host.clock.Elapsed()
	if l.host.notifier == nil || l.tokens != nil || now < l.subscribeAt {
		return
	}
	l.subscribeAt = now + noticeMost
	ctx, cancel := context.WithCancel(l.host.life)
	timeout := time.AfterFunc(l.host.callTimeout, cancel)
	tokens, err := l.host.notifier.Notify(ctx, l.name.tenant, l.name.key)
	if !timeout.Stop() || err != nil {
		cancel()
		return
	}
	l.tokens, l.unsubscribe = tokens, cancel
}

// ask asks the store for the first in line.
func (l *line) ask(w *waiter) {
	h := l.host
	wait := l.storeWait(w)
	ctx, cancel := context.WithTimeout(withValues{h.life, w.values}, h.callTimeout+wait)
	defer cancel()
	h.mu.Lock()
	w.sent = h.clock.Elapsed()
	if wait > 0 {
		w.hangUp = cancel
		if w.gone {
			cancel()
		}
	}
	h.mu.Unlock()
	var lease Lease
	var err error
	if wait > 0 {
		lease, err = h.waiter.AcquireWithin(ctx, w.request, wait)
	} else {
		lease, err = h.store.Do(ctx, w.request)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	w.asking, w.hangUp = false, nil
	l.answered(w, lease, err, wait)
}

// storeWait is how long the store may wait by itself: as long as it is known what
// to tell those whose own wait ends meanwhile.
func (l *line) storeWait(w *waiter) time.Duration {
	l.host.mu.Lock()
	defer l.host.mu.Unlock()
	known := l.known()
	if l.host.waiter == nil || w.late || known == nil {
		return 0
	}
	wait := min(storeWait, known.remaining())
	if !w.patient {
		wait = min(wait, w.until-l.host.clock.Elapsed())
	}
	return max(0, wait)
}

// answered does what the store's answer demands. Under host.mu.
func (l *line) answered(w *waiter, lease Lease, err error, wait time.Duration) {
	h := l.host
	now := h.clock.Elapsed()
	var held *HeldError
	var fenced *FencedError
	if IsAnswer(err) {
		l.failed, w.open = 0, false
	}
	switch {
	case err == nil:
		l.granted(w, lease)
	case errors.As(err, &held):
		l.held, l.heldAt = held, w.sent
		l.foundHeld(held.remaining())
		l.tryAt = now + askAgainIn(l.found, held.remaining(), l.tokens != nil, rand.Float64())
		if waited := wait >= pollFirst && now-w.sent >= wait; waited || wait == 0 && h.waiter != nil && !l.over && l.known() != nil {
			l.tryAt = now // the store itself has waited, or will
		}
		l.finish(w, err)
	case errors.As(err, &fenced):
		left := time.Duration(fenced.RemainingMS) * time.Millisecond
		l.foundHeld(left)
		l.tryAt = now + askAgainIn(l.found, left, false, rand.Float64())
		l.finish(w, err)
	case IsAnswer(err):
		if w.gone {
			l.drop(w)
			return
		}
		l.settle(w, granted{}, err)
	default:
		l.failed++
		w.open = true
		l.tryAt = now + h.retryIn(l.failed)
		l.unanswered(w, err)
	}
}

// foundHeld counts. Who has waited for the end for long asks often again when it
// comes. Under host.mu.
func (l *line) foundHeld(remaining time.Duration) {
	over := remaining < pollFirst
	if over && !l.over {
		l.found = 0
	}
	l.found, l.over = l.found+1, over
}

// granted gives the lock to the first in line. If that is gone, it stays first
// until the lock is free again. Under host.mu.
func (l *line) granted(w *waiter, lease Lease) {
	l.found = 0
	// A store that has waited by itself adds that to what remains. The end stays, but
	// the term did not begin before the wait: a part of it would be a part of both.
	waited := min(lease.remaining()-w.request.TTL(), l.host.clock.Elapsed()-w.sent).Truncate(time.Millisecond)
	if waited > 0 {
		w.sent += waited
		lease.RemainingMS -= waited.Milliseconds()
	}
	l.held = &HeldError{
		Key: lease.Key, Owner: lease.Owner, Token: lease.Token, ExpiresMS: lease.ExpiresMS, RemainingMS: lease.RemainingMS,
		RequestID: w.request.RequestID,
	}
	l.heldAt = w.sent
	l.tryAt = w.sent + askAgainIn(1, l.held.remaining(), l.tokens != nil, rand.Float64())
	if w.gone {
		w.open = true // run clears up after it
	} else {
		l.settle(w, granted{lease, w.sent}, nil)
	}
	l.hurry()
	l.admitHolder()
}

// finish is after an answer that leaves everything as it is. Under host.mu.
func (l *line) finish(w *waiter, err error) {
	if w.gone {
		l.drop(w)
	}
	l.answerLate(err)
	l.admitHolder()
}

// unanswered is after a request of which nobody knows what became. Who cannot
// wait for more is told so. Under host.mu.
func (l *line) unanswered(w *waiter, err error) {
	if w.late {
		l.refuse(w, err)
	}
	l.answerLate(err)
}

// clear releases what one who is gone was, or may have been, granted. Until that
// is done it keeps its place, so that nobody who asks again with its request ID
// is given what is about to be released.
func (l *line) clear(w *waiter) {
	h := l.host
	if w.open && !w.elsewhere {
		_ = h.abandon(w.request, w.sent+w.request.TTL())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l.drop(w)
	l.forget()
}

func (e *HeldError) remaining() time.Duration {
	return time.Duration(e.RemainingMS) * time.Millisecond
}

// withValues ends when its Context does, and carries the values of another too.
type withValues struct {
	context.Context
	values context.Context
}

// Value implements context.Context.
func (c withValues) Value(key any) any {
	if own := c.Context.Value(key); own != nil { // what concerns its end, above all
		return own
	}
	return c.values.Value(key)
}

// retryIn is how long to leave a store alone that has failed.
func (h *Host) retryIn(failures int) time.Duration {
	return backoff(failures, retryFirst, retryMost, rand.Float64())
}
