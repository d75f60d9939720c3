package lock

import (
	"errors"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/keyname"
)

// Errors without fields. Callers decide with errors.Is.
var (
	// ErrNotOwned: there is no lease, it is released, another owner's, or not the named one.
	// LOCK_NOT_OWNED.
	ErrNotOwned = errors.New("the lock is not held by this owner under this lease")
	// ErrExpired: the lease was the caller's, and its term is over. LOCK_EXPIRED.
	ErrExpired = errors.New("the lease has expired")
	// ErrRequestReused: the request ID was used before, for something else or for
	// a lease that has ended, as far as that is remembered. Ask again with a new one. REQUEST_ID_REUSED.
	ErrRequestReused = errors.New("the request ID was used before, with other parameters or for a lease that has ended")
	// ErrNotFound: the store knows nothing of the key.
	ErrNotFound = errors.New("no such lock")
	// ErrInvalid: the request can never succeed as it is.
	ErrInvalid = errors.New("invalid request")
)

// HeldError: an owner holds the lock. LOCK_HELD.
type HeldError struct {
	Key         string
	Owner       string // the holder
	Token       int64
	ExpiresMS   int64 // Unix ms, the store's clock; a renewal moves it, a release frees the key sooner
	RemainingMS int64 // how long that is away by the store's clock, at least 1

	// RequestID is the acquire's, as it is kept (keyname.KeptRequestID), and Mark a lease
	// server's addition to it (keyname.MarkedRequestID). They are for the queue of a Host,
	// which lets the holder itself ask again.
	RequestID, Mark string
}

// isOf reports whether the request is the acquire that the lease was granted to.
func (e *HeldError) isOf(r Request) bool {
	if e.Owner != r.Owner || r.RequestID == "" {
		return false
	}
	return e.RequestID == keyname.KeptRequestID(r.RequestID) ||
		e.Mark != "" && e.RequestID == keyname.KeptRequestID(keyname.MarkedRequestID(e.Mark, r.RequestID))
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
