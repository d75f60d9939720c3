package daemon

import "time"

// MessageEnd decides the read deadline of a connection: a peer may be silent for ever between
// messages, and not in the middle of one, which holds memory.
type MessageEnd struct {
	set  bool // there is a deadline
	over bool // the message that it was set for has ended
	last bool // a drain set it
}

// Ended says that a message has ended.
func (e *MessageEnd) Ended() { e.over = true }

// Limit sets the deadline of the next read, and reports whether it differs from the one before.
// During a drain it sets only one, late from now: a peer that goes on sending must not put that
// off. partial: a message has begun.
func (e *MessageEnd) Limit(partial bool, patience time.Duration, draining func() bool, late time.Duration, set func(time.Time) error) (changed bool, err error) {
	if !draining() {
		var until time.Time
		if until, changed = e.next(partial, patience); changed {
			err = set(until)
		}
	}
	if err == nil && draining() && !e.last { // the drain's own deadline may just have been lost
		e.last, changed = true, true
		err = set(time.Now().Add(late))
	}
	return changed, err
}

// next returns the deadline, zero for none, and whether it differs from the set one.
func (e *MessageEnd) next(partial bool, patience time.Duration) (until time.Time, changed bool) {
	if partial == e.set && !(partial && e.over) {
		return time.Time{}, false
	}
	e.set, e.over = partial, false
	if partial {
		until = time.Now().Add(patience)
	}
	return until, true
}
