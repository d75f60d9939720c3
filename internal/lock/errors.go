package lock

import (
	"errors"
	"fmt"
	"time"
)

// Errors without fields. Callers decide with errors.Is.
var (
	// ErrNotOwned: there is no lease, it is released, another owner's, or not the one
	// that was named. LOCK_NOT_OWNED.
	ErrNotOwned = errors.New("the lock is not held by this owner under this lease")
	// ErrExpired: the lease was the caller's, and its term is over. LOCK_EXPIRED.
	ErrExpired = errors.New("the lease has expired")
	// ErrRequestReused: the request ID was used before, for something else or for
	// a lease that has ended. Ask again with a new one. REQUEST_ID_REUSED.
	ErrRequestReused = errors.New("the request ID was used before, with other parameters or for a lease that has ended")
	// ErrNotFound: the store knows nothing of the key.
	ErrNotFound = errors.New("no such lock")
	// ErrInvalid: the request can never succeed as it is.
	ErrInvalid = errors.New("invalid request")
	// ErrTokensUsedUp: the key's token cannot grow any more.
	ErrTokensUsedUp = errors.New("the key's fencing tokens are used up")
)

// HeldError: somebody holds the lock. LOCK_HELD.
type HeldError struct {
	Key         string
	Owner       string // whose it is
	Token       int64
	ExpiresMS   int64 // Unix ms, the store's clock; a renewal moves it, a release frees the key sooner
	RemainingMS int64 // how long that is away by the store's clock, at least 1

	// RequestID is that of the acquire. It is secret, and for the queue of a Host, which
	// lets the holder itself ask again.
	RequestID string
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("lock %q is held by %q until %s, for another %v", e.Key, e.Owner, showTime(e.ExpiresMS), time.Duration(e.RemainingMS)*time.Millisecond)
}

// FencedError: the store may have forgotten leases, and grants none until all
// of those have ended.
type FencedError struct {
	UntilMS     int64 // Unix ms, the store's clock
	RemainingMS int64 // how long that is away by the store's clock
	Reason      string
}

func (e *FencedError) Error() string {
	return fmt.Sprintf("locks are not granted until %s, for another %v: %s", showTime(e.UntilMS), time.Duration(e.RemainingMS)*time.Millisecond, e.Reason)
}

// OldRequestError: the request may have been carried out; its receipt would have been
// dropped. It is an ErrRequestReused.
type OldRequestError struct {
	MadeMS    int64 // Unix ms, from the request ID
	DroppedMS int64 // likewise; of the requests up to then, not all are remembered
}

func (e *OldRequestError) Error() string {
	return fmt.Sprintf("the request ID was made at %s, and requests from up to %s are forgotten: it may have been carried out. "+
		"Look at the lock, and ask again with a new request ID; if this one is new, the clock of the host that made it is behind",
		showTime(e.MadeMS), showTime(e.DroppedMS))
}

// Is implements errors.Is.
func (e *OldRequestError) Is(target error) bool { return target == ErrRequestReused }
