package lock

import (
	"context"
	"fmt"
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
	asked  int           // how often the store was asked
	stale  bool          // since then it was said that the lock may be free

	poked  chan struct{} // buffer of 1: look again
	failed int           // how often in a row the store has failed

	tokens      <-chan struct{} // of Store.Notify; nil: not subscribed
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
	ends   time.Duration      // Elapsed: until then what it was granted lives, if open
	hangUp context.CancelFunc // ends what the store waits for by itself
	joined int                // how often the store had been asked when this one came

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
	w.joined = l.asked
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
// the first time. Whatever the first is or was granted is w's: the store is asked
// once more for it. It returns the place in the line, which w takes over. Under
// host.mu.
func (l *line) supersede(place int, w *waiter) int {
	earlier := l.queue[place]
	if earlier.asking || earlier.open {
		w.inherit(earlier)
	}
	if earlier.hangUp != nil {
		earlier.hangUp()
	}
	l.refuse(earlier, fmt.Errorf("%w: it was made again before it was answered", ErrRequestReused))
	if earlier.asking {
		return place + 1
	}
	return place
}

// inherit has the store be asked what became of an earlier request. By that one's
// lease ID, whatever it left is released if w leaves too.
func (w *waiter) inherit(earlier *waiter) {
	w.open, w.ends, w.request.LeaseID = true, earlier.ends, earlier.request.LeaseID
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
	l.stale = true
	l.poke()
}

// known is what stands in the way as of now, as far as that is known. Under
// host.mu.
func (l *line) known() *HeldError {
	if l.held == nil || l.stale {
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

// late are those who cannot wait; but not one for whom the store was asked, which
// is told what became of that. Under host.mu.
func (l *line) late() (late []*waiter) {
	for _, w := range l.queue {
		if w.late && !w.gone && !w.asking && !w.open && !l.isHolder(w) {
			late = append(late, w)
		}
	}
	return late
}

// answerLate gives those who cannot wait what is known. Under host.mu.
func (l *line) answerLate(err error) {
	for _, w := range l.late() {
		l.settle(w, granted{}, err)
	}
}

// answerHeld gives them the store's answer. To one who came after the store was
// asked it may be old news: it is told what is known to be so still. Under host.mu.
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
