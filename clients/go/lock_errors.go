package kazahana

import (
	"fmt"
	"time"
)

// Codes of locks and sequences.
const (
	ErrNoStore           Code = "NO_STORE"           // the daemon keeps no locks and sequences
	ErrStoreUnavailable  Code = "STORE_UNAVAILABLE"  // the store of locks and sequences fails
	ErrStoreFull         Code = "STORE_FULL"         // no room for a new key; the details setting and limit say why
	ErrLockHeld          Code = "LOCK_HELD"          // a *LockHeldError
	ErrLockNotOwned      Code = "LOCK_NOT_OWNED"     // another owner holds the lock, or none does
	ErrLockExpired       Code = "LOCK_EXPIRED"       // the lock's term is over
	ErrLockNotFound      Code = "LOCK_NOT_FOUND"     // no owner has held the lock recently
	ErrLockFenced        Code = "LOCK_FENCED"        // a *FencedError
	ErrLockLost          Code = "LOCK_LOST"          // a *LockLostError
	ErrSequenceExhausted Code = "SEQUENCE_EXHAUSTED" // a *SequenceExhaustedError
	ErrSequenceFenced    Code = "SEQUENCE_FENCED"    // a *FencedError
)

// LockHeldError: another owner holds the lock, or with Resolve, another host the
// activation.
type LockHeldError struct {
	RetryAfter time.Duration // time until it ends, unless it is renewed
	Owner      string
	Err        *Error
}

func (e *LockHeldError) Error() string { return e.Err.Error() }
func (e *LockHeldError) Unwrap() error { return e.Err }

// FencedError: the store of locks or sequences may have forgotten some, and grants none
// until a time. The zero time means: until an operator says how to go on.
type FencedError struct {
	Until time.Time
	Err   *Error
}

func (e *FencedError) Error() string { return e.Err.Error() }
func (e *FencedError) Unwrap() error { return e.Err }

// SequenceExhaustedError: the sequence has fewer values left than the call wants.
type SequenceExhaustedError struct {
	MaxValue, Left int64
	Err            *Error
}

func (e *SequenceExhaustedError) Error() string { return e.Err.Error() }
func (e *SequenceExhaustedError) Unwrap() error { return e.Err }

// LockLostError: a lock was lost while it was held.
type LockLostError struct {
	Key    string
	Reason string // expired, taken_over, refused, released (by another connection) or disconnected
	Err    error  // further details, or nil
}

func (e *LockLostError) Error() string {
	text := fmt.Sprintf("kazahana: %s: the lock %q is lost: %s", ErrLockLost, e.Key, e.Reason)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}
func (e *LockLostError) Unwrap() error { return e.Err }

// Is reports whether target is ErrLockLost.
func (e *LockLostError) Is(target error) bool { return target == ErrLockLost }

// lockError gives an answered error the type that belongs to its code.
func lockError(e *Error) error {
	switch e.Code {
	case ErrLockHeld:
		return &LockHeldError{e.milliseconds("retry_after_ms"), e.Details["owner"], e}
	case ErrLockFenced, ErrSequenceFenced:
		fenced := &FencedError{Err: e}
		if until := e.number("until_ms"); until > 0 {
			fenced.Until = time.UnixMilli(until)
		}
		return fenced
	case ErrSequenceExhausted:
		return &SequenceExhaustedError{e.number("max_value"), e.number("left"), e}
	}
	return e
}
