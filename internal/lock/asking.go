package lock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"
)

// run asks the store for the first in line, for as long as anybody is in it.
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
	if l.tokens != nil || now < l.subscribeAt {
		return
	}
	l.subscribeAt = now + noticeMost
	ctx, cancel := context.WithCancel(l.host.life)
	timeout := time.AfterFunc(l.host.callTimeout, cancel)
	tokens, err := l.host.store.Notify(ctx, l.name.tenant, l.name.key)
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
	l.asked, l.stale = l.asked+1, false
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
		lease, err = h.store.AcquireWithin(ctx, w.request, wait)
	} else {
		lease, err = h.store.Do(ctx, w.request)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	w.asking, w.hangUp = false, nil
	l.answered(w, lease, err, wait)
	if l.stale { // the answer may be from before
		l.forget()
	}
}

// storeWait is how long the store may wait by itself: as long as it is known what
// to tell those whose own wait ends meanwhile.
func (l *line) storeWait(w *waiter) time.Duration {
	l.host.mu.Lock()
	defer l.host.mu.Unlock()
	known := l.known()
	if !l.host.waits || w.late || known == nil {
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
		if waited := wait >= pollFirst && now-w.sent >= wait; waited || wait == 0 && h.waits && !l.over && l.known() != nil {
			l.tryAt = now // the store itself has waited, or will
		}
		l.answerHeld(held)
		l.stays(w)
	case errors.As(err, &fenced):
		left := time.Duration(fenced.RemainingMS) * time.Millisecond
		l.foundHeld(left)
		l.tryAt = now + askAgainIn(l.found, left, false, rand.Float64())
		l.answerLate(err)
		l.stays(w)
	case IsAnswer(err):
		if w.gone {
			l.drop(w)
			return
		}
		l.settle(w, granted{}, err)
	default:
		l.failed++
		w.open, w.ends = true, now+w.request.TTL() // it was granted just now, at the latest
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
		w.open, w.ends = true, w.sent+w.request.TTL() // run clears up after it
	} else {
		l.settle(w, granted{lease, w.sent}, nil)
	}
	l.hurry()
	l.admitHolder()
}

// stays is after an answer that leaves everything as it is. Under host.mu.
func (l *line) stays(w *waiter) {
	if w.gone {
		l.drop(w)
	}
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

// clear releases what one who is gone was, or may have been, granted, unless the
// same request waits again, and gets it. Until that is done it keeps its place, so
// that nobody who asks again with its request ID is given what is about to be
// released.
//
// It is tried for as long as the lease lives that was granted while the store was
// asked. What arrives there later still, when the call is over and the release too,
// is known to nobody, and ends with its term.
func (l *line) clear(w *waiter) {
	h := l.host
	h.mu.Lock()
	defer h.mu.Unlock()
	again := slices.IndexFunc(l.queue, w.repeats)
	switch {
	case w.open && again >= 0:
		l.queue[again].inherit(w)
	case w.open && !w.elsewhere:
		h.mu.Unlock()
		_ = h.abandon(w.request, w.ends)
		h.mu.Lock()
	}
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
