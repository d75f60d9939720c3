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

// Limit sets the deadline of the next read, where it differs from the one before. partial: a
// message has begun.
func (e *MessageEnd) Limit(partial bool, patience time.Duration, set func(time.Time) error) error {
	if partial == e.set && !(partial && e.over) {
		return nil
	}
	e.set, e.over = partial, false
	var until time.Time
	if partial {
		until = time.Now().Add(patience)
	}
	return set(until)
}
