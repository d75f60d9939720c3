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

// A Code names what went wrong, the same in every language. Codes are errors
// themselves, to be asked for with errors.Is:
//
//	if errors.Is(err, kazahana.ErrLockHeld) { ... }
type Code string

// Error returns the code.
func (c Code) Error() string { return string(c) }

// The codes. Those with facts to tell come as an error of a type of their own,
// which errors.As finds.
const (
	ErrClockBackward     Code = "CLOCK_BACKWARD"      // a *ClockBackwardError
	ErrLeaseAcquisition  Code = "LEASE_ACQUISITION"   // a *LeaseAcquisitionError
	ErrNoProvider        Code = "NO_PROVIDER"         // no provider is configured, and fallback IDs are not allowed
	ErrTimeout           Code = "TIMEOUT"             // a *RequestTimeoutError
	ErrTimestampOverflow Code = "TIMESTAMP_OVERFLOW"  // the layout's time is used up
	ErrUnknownService    Code = "UNKNOWN_SERVICE"     // the message names those there are
	ErrUnknownMethod     Code = "UNKNOWN_METHOD"      // the daemon is older than this package
	ErrInvalidParams     Code = "INVALID_PARAMS"      // the message says what would be right
	ErrInvalidExternalID Code = "INVALID_EXTERNAL_ID" // likewise
	ErrPermissionDenied  Code = "PERMISSION_DENIED"   // the daemon does not serve this user
	ErrOverloaded        Code = "OVERLOADED"          // a limit of the daemon's is reached
	ErrShuttingDown      Code = "SHUTTING_DOWN"       // only if no other daemon came in time
	ErrRequestIDReused   Code = "REQUEST_ID_REUSED"   // the request ID stands for another request
	ErrNoStore           Code = "NO_STORE"            // the daemon keeps no locks and sequences
	ErrStoreUnavailable  Code = "STORE_UNAVAILABLE"   // the store of locks and sequences fails
	ErrLockHeld          Code = "LOCK_HELD"           // a *LockHeldError
	ErrLockNotOwned      Code = "LOCK_NOT_OWNED"      // somebody else holds the lock, or nobody
	ErrLockExpired       Code = "LOCK_EXPIRED"        // the lock's term is over
	ErrLockNotFound      Code = "LOCK_NOT_FOUND"      // nobody has held the lock lately
	ErrLockFenced        Code = "LOCK_FENCED"         // a *FencedError
	ErrLockLost          Code = "LOCK_LOST"           // a *LockLostError
	ErrSequenceExhausted Code = "SEQUENCE_EXHAUSTED"  // a *SequenceExhaustedError
	ErrSequenceFenced    Code = "SEQUENCE_FENCED"     // a *FencedError
	ErrPlacementNotReady Code = "PLACEMENT_NOT_READY" // a *PlacementNotReadyError
	ErrPlacementPending  Code = "PLACEMENT_PENDING"   // a *PlacementPendingError
	ErrActivationFailed  Code = "ACTIVATION_FAILED"   // an *ActivationFailedError
	ErrActivationEnded   Code = "ACTIVATION_ENDED"    // an *ActivationEndedError
	ErrWatchEnded        Code = "WATCH_ENDED"         // a *WatchEndedError
	ErrDaemonUnavailable Code = "DAEMON_UNAVAILABLE"  // a *DaemonUnavailableError
	ErrProtocol          Code = "PROTOCOL_ERROR"      // what answers is no kazahana daemon
	ErrClosed            Code = "CLIENT_CLOSED"       // the Client was closed
)

// An Error is what the daemon answered instead of a result. Every error with a
// code can be had as one, with errors.As, but for those that arise without a
// daemon: of the package's own types, and ErrClosed.
type Error struct {
	Code    Code
	Message string            // one line, for people
	Details map[string]string // facts, by the daemon's names: backward_ms, cause
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

// number is a detail as an integer; 0 if the daemon did not tell it.
func (e *Error) number(key string) int64 {
	n, _ := strconv.ParseInt(e.Details[key], 10, 64)
	return n
}

func (e *Error) milliseconds(key string) time.Duration {
	return time.Duration(e.number(key)) * time.Millisecond
}

// ClockBackwardError: the host's clock was set back by more than the daemon's
// max_backward. It names the Network Time Protocol's slewing as the remedy.
type ClockBackwardError struct {
	Backward, Limit time.Duration
	Err             *Error // as it was answered
}

func (e *ClockBackwardError) Error() string { return e.Err.Error() }
func (e *ClockBackwardError) Unwrap() error { return e.Err }

// LeaseAcquisitionError: the daemon holds no valid lease, and may not make a
// fallback ID.
type LeaseAcquisitionError struct {
	Cause string // why it got none
	Err   *Error
}

func (e *LeaseAcquisitionError) Error() string { return e.Err.Error() }
func (e *LeaseAcquisitionError) Unwrap() error { return e.Err }

// RequestTimeoutError: the call's time ran out. It is context.DeadlineExceeded
// as well.
type RequestTimeoutError struct {
	Waited time.Duration
	Cause  string // clock, sequence or lease, if the daemon knows what it waited for
	Err    *Error
}

func (e *RequestTimeoutError) Error() string { return e.Err.Error() }
func (e *RequestTimeoutError) Unwrap() error { return e.Err }

// Is reports whether target is context.DeadlineExceeded.
func (e *RequestTimeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// Timeout reports true, as net.Error wants it.
func (e *RequestTimeoutError) Timeout() bool { return true }

// LockHeldError: somebody else holds the lock; of Resolve, that of the activation.
type LockHeldError struct {
	RetryAfter time.Duration // when it ends, unless it is renewed
	Owner      string
	Err        *Error
}

func (e *LockHeldError) Error() string { return e.Err.Error() }
func (e *LockHeldError) Unwrap() error { return e.Err }

// FencedError: the store of locks or sequences may have forgotten some, and
// grants none until a time (the zero time: until its operator says how it goes on).
type FencedError struct {
	Until time.Time
	Err   *Error
}

func (e *FencedError) Error() string { return e.Err.Error() }
func (e *FencedError) Unwrap() error { return e.Err }

// SequenceExhaustedError: the sequence has not as many values left as were asked for.
type SequenceExhaustedError struct {
	MaxValue, Left int64
	Err            *Error
}

func (e *SequenceExhaustedError) Error() string { return e.Err.Error() }
func (e *SequenceExhaustedError) Unwrap() error { return e.Err }

// PlacementNotReadyError: the daemon cannot tell where actors live.
type PlacementNotReadyError struct {
	State string // off, stopped, not_ready, or client: it resolves, and takes no Executor
	Err   *Error
}

func (e *PlacementNotReadyError) Error() string { return e.Err.Error() }
func (e *PlacementNotReadyError) Unwrap() error { return e.Err }

// PlacementPendingError: the wait is over, and the activation is still under way,
// or the passivation before it. The next Resolve may find it done.
type PlacementPendingError struct {
	Cause string // what stands in the way, if the daemon knows
	Err   *Error
}

func (e *PlacementPendingError) Error() string { return e.Err.Error() }
func (e *PlacementPendingError) Unwrap() error { return e.Err }

// ActivationFailedError: no process has activated the actor.
type ActivationFailedError struct {
	Cause string // the error of Executor.Activate, or why it was not called
	Err   *Error
}

func (e *ActivationFailedError) Error() string { return e.Err.Error() }
func (e *ActivationFailedError) Unwrap() error { return e.Err }

// ActivationEndedError: an activation has ended, or nobody can say that it has
// not. It must not be relied on.
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

// WatchEndedError: there are no more events. Some may have happened that nobody
// was told.
type WatchEndedError struct {
	Reason string // too_slow: they were not read in time; stopping, or disconnected: of the daemon
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

// LockLostError: a lock was held, and is not any more.
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
	for i := len(w.Details) - 1; i >= 0; i-- { // the first of a key counts
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

// invalid is the error for an argument that no daemon would take.
func invalid(code Code, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}
