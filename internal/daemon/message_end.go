package daemon

import "time"

// MessageEnd decides the read deadline of a connection: a peer may be silent for ever between
// messages, and not in the middle of one, which holds memory.
type MessageEnd struct {
	set  bool // there is a deadline
	over bool // the message that it was set for has ended
}

// Ended says that a message has ended.
func (e *MessageEnd) Ended() { e.over = true }

// Next returns the deadline of the next read, zero for none, and whether it differs from the one
// that is set. partial: a message has begun.
func (e *MessageEnd) Next(partial bool, patience time.Duration) (until time.Time, changed bool) {
	if partial == e.set && !(partial && e.over) {
		return time.Time{}, false
	}
	e.set, e.over = partial, false
	if partial {
		until = time.Now().Add(patience)
	}
	return until, true
}
