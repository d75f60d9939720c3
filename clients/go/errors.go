package kazahana

import (
	"context"
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"
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
	ErrInvalidParams     Code = "INVALID_PARAMS"      // the message says what would be allowed
	ErrInvalidExternalID Code = "INVALID_EXTERNAL_ID" // likewise
	ErrPermissionDenied  Code = "PERMISSION_DENIED"   // the daemon does not serve this user
	ErrOverloaded        Code = "OVERLOADED"          // a limit of the daemon is reached
	ErrShuttingDown      Code = "SHUTTING_DOWN"       // the daemon is stopping, and no other started in time
	ErrStartFailed       Code = "START_FAILED"        // the daemon cannot start; the message says whether it tries again
	ErrRequestIDReused   Code = "REQUEST_ID_REUSED"   // the request ID was used for another request
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

// prefix is not on the wire.
const prefix = "kazahana: "

// Error returns the code, the message and the details, in the form of the wire.
func (e *Error) Error() string {
	text := strings.TrimSuffix(fmt.Sprintf(prefix+"%s: %s", e.Code, e.Message), " ")
	keys := make([]string, 0, len(e.Details))
	for key := range e.Details {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		value := e.Details[key]
		if !bare.MatchString(value) {
			value = strconv.Quote(value)
		}
		text += " " + key + "=" + value
	}
	return text
}

// Is reports whether target is the error's code.
func (e *Error) Is(target error) bool { return target == e.Code }

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
	Cause  string // clock, sequence or lease, if the daemon knows the cause of the wait
	Err    *Error
}

func (e *RequestTimeoutError) Error() string { return e.Err.Error() }
func (e *RequestTimeoutError) Unwrap() error { return e.Err }

// Is reports whether target is context.DeadlineExceeded.
func (e *RequestTimeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// Timeout returns true, for net.Error.
func (e *RequestTimeoutError) Timeout() bool { return true }

// DaemonUnavailableError: no daemon answers at the socket.
type DaemonUnavailableError struct {
	Socket string // empty if none was found
	Err    error  // the system's error, or the search's

	hopeless bool // waiting cannot help
}

func (e *DaemonUnavailableError) Error() string {
	return fmt.Sprintf("kazahana: %s: %v", ErrDaemonUnavailable, e.Err)
}
func (e *DaemonUnavailableError) Unwrap() error { return e.Err }

// Is reports whether target is ErrDaemonUnavailable.
func (e *DaemonUnavailableError) Is(target error) bool { return target == ErrDaemonUnavailable }

// An error's text is its code with a colon, its message, and its details.
const detailForm = `([a-z][a-z0-9_]*)=("(?:[^"\\]|\\.)*"|[^" ][^ ]*)(?: |$)`

var (
	errorForm = regexp.MustCompile(`(?s)^(?:([A-Z][A-Z0-9_]*):(?: |$))?(|.*? |.*)((?:` + detailForm + `)*)$`)
	details   = regexp.MustCompile(`(?s)` + detailForm)
	bare      = regexp.MustCompile(`^[!#-<>-~]+$`) // ASCII that needs no quotes
)

// ParseError makes an error of its text on the wire: of the type that belongs to its code. Text
// in another form is not a daemon's.
func ParseError(text string) error {
	parts := errorForm.FindStringSubmatch(text)
	e := &Error{Code: Code(parts[1]), Message: strings.TrimSuffix(parts[2], " ")}
	for _, m := range details.FindAllStringSubmatch(parts[3], -1) {
		value := m[2]
		if plain, err := strconv.Unquote(value); err == nil && value[0] == '"' {
			value = plain
		}
		if e.Details == nil {
			e.Details = map[string]string{}
		}
		if _, there := e.Details[m[1]]; !there {
			e.Details[m[1]] = value
		}
	}
	switch e.Code {
	case "":
		return &Error{Code: ErrProtocol, Message: text}
	case ErrClockBackward:
		return &ClockBackwardError{e.milliseconds("backward_ms"), e.milliseconds("limit_ms"), e}
	case ErrLeaseAcquisition:
		return &LeaseAcquisitionError{e.Details["cause"], e}
	case ErrTimeout:
		return &RequestTimeoutError{e.milliseconds("waited_ms"), e.Details["cause"], e}
	}
	return lockError(e)
}

// invalid is the error for an argument that no daemon accepts.
func invalid(code Code, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// protocolError is the error for an answer that no daemon gives.
func protocolError(format string, args ...any) error { return invalid(ErrProtocol, format, args...) }
