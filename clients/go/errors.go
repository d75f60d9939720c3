package kazahana

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/internal/wire"
)

// A Code is the kind of an error, the same in every language. Codes are errors themselves,
// for errors.Is:
//
//	if errors.Is(err, kazahana.ErrLockHeld) { ... }
type Code string

// Error returns the code.
func (c Code) Error() string { return string(c) }

// The codes. Errors with further facts have types of their own, for errors.As.
const (
	ErrClockBackward     Code = "CLOCK_BACKWARD"      // a *ClockBackwardError
	ErrLeaseAcquisition  Code = "LEASE_ACQUISITION"   // a *LeaseAcquisitionError
	ErrNoProvider        Code = "NO_PROVIDER"         // no provider is configured, and fallback IDs are not allowed
	ErrTimeout           Code = "TIMEOUT"             // a *RequestTimeoutError
	ErrTimestampOverflow Code = "TIMESTAMP_OVERFLOW"  // the layout's time is used up
	ErrUnknownService    Code = "UNKNOWN_SERVICE"     // the message names the existing ones
	ErrUnknownMethod     Code = "UNKNOWN_METHOD"      // the daemon is older than this package
	ErrInvalidParams     Code = "INVALID_PARAMS"      // the message says what is allowed
	ErrInvalidExternalID Code = "INVALID_EXTERNAL_ID" // likewise
	ErrPermissionDenied  Code = "PERMISSION_DENIED"   // the daemon does not serve this user
	ErrOverloaded        Code = "OVERLOADED"          // a limit of the daemon is reached
	ErrShuttingDown      Code = "SHUTTING_DOWN"       // the daemon is stopping, and no other started in time
	ErrStartFailed       Code = "START_FAILED"        // the daemon cannot start: its configuration or its state directory is wrong
	ErrRequestIDReused   Code = "REQUEST_ID_REUSED"   // the request ID was used for another request
	ErrNoStore           Code = "NO_STORE"            // the daemon keeps no locks and sequences
	ErrStoreUnavailable  Code = "STORE_UNAVAILABLE"   // the store of locks and sequences fails
	ErrLockHeld          Code = "LOCK_HELD"           // a *LockHeldError
	ErrLockNotOwned      Code = "LOCK_NOT_OWNED"      // another owner holds the lock, or none does
	ErrLockExpired       Code = "LOCK_EXPIRED"        // the lock's term is over
	ErrLockNotFound      Code = "LOCK_NOT_FOUND"      // no owner has held the lock recently
	ErrLockFenced        Code = "LOCK_FENCED"         // a *FencedError
	ErrLockLost          Code = "LOCK_LOST"           // a *LockLostError
	ErrSequenceExhausted Code = "SEQUENCE_EXHAUSTED"  // a *SequenceExhaustedError
	ErrSequenceFenced    Code = "SEQUENCE_FENCED"     // a *FencedError
	ErrPlacementNotReady Code = "PLACEMENT_NOT_READY" // a *PlacementNotReadyError
	ErrPlacementPending  Code = "PLACEMENT_PENDING"   // a *PlacementPendingError
	ErrPlacementUnserved Code = "PLACEMENT_UNSERVED"  // no process of any host has registered for the kind
	ErrActivationFailed  Code = "ACTIVATION_FAILED"   // an *ActivationFailedError
	ErrActivationEnded   Code = "ACTIVATION_ENDED"    // an *ActivationEndedError
	ErrWatchEnded        Code = "WATCH_ENDED"         // a *WatchEndedError
	ErrDaemonUnavailable Code = "DAEMON_UNAVAILABLE"  // a *DaemonUnavailableError
	ErrProtocol          Code = "PROTOCOL_ERROR"      // the peer is not a kazahana daemon
	ErrClosed            Code = "CLIENT_CLOSED"       // the Client was closed
)

// An Error is an error that the daemon answered. errors.As finds one in every error with a
// code, except in errors that arise without an answer of the daemon, such as ErrClosed.
type Error struct {
	Code    Code
	Message string            // one line
	Details map[string]string // facts by the daemon's names, such as backward_ms or cause
}

// Error returns the code, the message and the details, in the form of the wire.
func (e *Error) Error() string { return "kazahana: " + e.wire().Error() }

// Is reports whether target is the error's code.
func (e *Error) Is(target error) bool { return target == e.Code }

func (e *Error) wire() *wire.Error {
	w := wire.Errorf(wire.Code(e.Code), "%s", e.Message)
	for _, key := range slices.Sorted(maps.Keys(e.Details)) {
		w.Details = append(w.Details, wire.Detail{Key: key, Value: e.Details[key]})
	}
	return w
}

// number is a detail as an integer; 0 if it is missing.
func (e *Error) number(key string) int64 {
	n, _ := strconv.ParseInt(e.Details[key], 10, 64)
	return n
}

func (e *Error) milliseconds(key string) time.Duration {
	return time.Duration(e.number(key)) * time.Millisecond
}

// ClockBackwardError: the host's clock was set back by more than the daemon's
// max_backward. Its text recommends NTP with slewing.
type ClockBackwardError struct {
	Backward, Limit time.Duration
	Err             *Error // the daemon's answer
}

func (e *ClockBackwardError) Error() string { return e.Err.Error() }
func (e *ClockBackwardError) Unwrap() error { return e.Err }

// LeaseAcquisitionError: the daemon holds no valid lease, and a fallback ID is not
// allowed.
type LeaseAcquisitionError struct {
	Cause string // why it got no lease
	Err   *Error
}

func (e *LeaseAcquisitionError) Error() string { return e.Err.Error() }
func (e *LeaseAcquisitionError) Unwrap() error { return e.Err }

// RequestTimeoutError: the call's time ran out. It also is context.DeadlineExceeded.
type RequestTimeoutError struct {
	Waited time.Duration
	Cause  string // clock, sequence or lease, if the daemon knows what it waited for
	Err    *Error
}

func (e *RequestTimeoutError) Error() string { return e.Err.Error() }
func (e *RequestTimeoutError) Unwrap() error { return e.Err }

// Is reports whether target is context.DeadlineExceeded.
func (e *RequestTimeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// Timeout returns true, for net.Error.
func (e *RequestTimeoutError) Timeout() bool { return true }

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

// PlacementNotReadyError: the daemon cannot tell where actors live.
type PlacementNotReadyError struct {
	State string // off, stopped, not_ready, or client: it resolves, and accepts no Executor
	Err   *Error
}

func (e *PlacementNotReadyError) Error() string { return e.Err.Error() }
func (e *PlacementNotReadyError) Unwrap() error { return e.Err }

// PlacementPendingError: the wait is over, and the activation, or the passivation before
// it, is still under way. A later Resolve may succeed.
type PlacementPendingError struct {
	Cause string // the obstacle, if the daemon knows it
	Err   *Error
}

func (e *PlacementPendingError) Error() string { return e.Err.Error() }
func (e *PlacementPendingError) Unwrap() error { return e.Err }

// ActivationFailedError: no process could activate the actor.
type ActivationFailedError struct {
	Cause string // the error of Executor.Activate, or why it was not called
	Err   *Error
}

func (e *ActivationFailedError) Error() string { return e.Err.Error() }
func (e *ActivationFailedError) Unwrap() error { return e.Err }

// ActivationEndedError: an activation has ended, or it is not known whether it has. The
// process must stop acting for the actor.
type ActivationEndedError struct {
	Kind, Identity string
	Reason         string // passivated, disconnected, refused (by the daemon) or unanswered
	Err            error  // what is known beyond that, or nil
}

func (e *ActivationEndedError) Error() string {
	text := fmt.Sprintf("kazahana: %s: the activation of %q is not to be relied on: %s", ErrActivationEnded, e.Kind+"/"+e.Identity, e.Reason)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}
func (e *ActivationEndedError) Unwrap() error { return e.Err }

// Is reports whether target is ErrActivationEnded.
func (e *ActivationEndedError) Is(target error) bool { return target == ErrActivationEnded }

// WatchEndedError: the daemon sends no more events. Some events may be missing.
type WatchEndedError struct {
	Reason string // too_slow: events were not read in time; stopping or disconnected: the daemon
	Err    error  // what is known beyond that, or nil
}

func (e *WatchEndedError) Error() string {
	text := fmt.Sprintf("kazahana: %s: no more events come: %s", ErrWatchEnded, e.Reason)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}
func (e *WatchEndedError) Unwrap() error { return e.Err }

// Is reports whether target is ErrWatchEnded.
func (e *WatchEndedError) Is(target error) bool { return target == ErrWatchEnded }

// LockLostError: a lock was lost while it was held.
type LockLostError struct {
	Key    string
	Reason string // expired, taken_over, refused, released (by another connection) or disconnected
	Err    error  // what is known beyond that, or nil
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

// DaemonUnavailableError: no daemon answers at the socket.
type DaemonUnavailableError struct {
	Socket string // empty if none was found
	Err    error  // the system's error, or the search's
}

func (e *DaemonUnavailableError) Error() string {
	return fmt.Sprintf("kazahana: %s: %v", ErrDaemonUnavailable, e.Err)
}
func (e *DaemonUnavailableError) Unwrap() error { return e.Err }

// Is reports whether target is ErrDaemonUnavailable.
func (e *DaemonUnavailableError) Is(target error) bool { return target == ErrDaemonUnavailable }

// fromWire gives an answered error the type that belongs to its code.
func fromWire(w *wire.Error) error {
	e := &Error{Code: Code(w.Code), Message: w.Message}
	for i := len(w.Details) - 1; i >= 0; i-- { // the first one of a key wins
		if e.Details == nil {
			e.Details = map[string]string{}
		}
		e.Details[w.Details[i].Key] = w.Details[i].Value
	}
	switch e.Code {
	case "":
		e.Code = ErrProtocol
	case ErrClockBackward:
		return &ClockBackwardError{e.milliseconds("backward_ms"), e.milliseconds("limit_ms"), e}
	case ErrLeaseAcquisition:
		return &LeaseAcquisitionError{e.Details["cause"], e}
	case ErrTimeout:
		return &RequestTimeoutError{e.milliseconds("waited_ms"), e.Details["cause"], e}
	case ErrLockHeld:
		return &LockHeldError{e.milliseconds("retry_after_ms"), e.Details["owner"], e}
	case ErrLockFenced, ErrSequenceFenced:
		fenced := &FencedError{Err: e}
		if until := e.number("until_ms"); until > 0 {
			fenced.Until = time.UnixMilli(until)
		}
		return fenced
	case ErrPlacementNotReady:
		return &PlacementNotReadyError{e.Details["state"], e}
	case ErrPlacementPending:
		return &PlacementPendingError{e.Details["cause"], e}
	case ErrActivationFailed:
		return &ActivationFailedError{e.Details["cause"], e}
	case ErrSequenceExhausted:
		return &SequenceExhaustedError{e.number("max_value"), e.number("left"), e}
	}
	return e
}

// outOfTime is the error of a call whose own time ran out.
func outOfTime(method string, waited time.Duration) error {
	ms := waited.Milliseconds()
	return fromWire(wire.Errorf(wire.CodeTimeout, "no answer to %s from the daemon", method).With("waited_ms", ms))
}

// invalid is the error for an argument that no daemon accepts.
func invalid(code Code, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}
