package placement

import (
	"errors"
	"fmt"

	kazahana "github.com/kazahana/kazahana/clients/go"
)

// Codes of placement.
const (
	ErrNotReady         kazahana.Code = "PLACEMENT_NOT_READY" // a *NotReadyError
	ErrPending          kazahana.Code = "PLACEMENT_PENDING"   // a *PendingError
	ErrUnserved         kazahana.Code = "PLACEMENT_UNSERVED"  // no process of any host has registered for the kind
	ErrActivationFailed kazahana.Code = "ACTIVATION_FAILED"   // an *ActivationFailedError
	ErrActivationEnded  kazahana.Code = "ACTIVATION_ENDED"    // an *ActivationEndedError
	ErrWatchEnded       kazahana.Code = "WATCH_ENDED"         // a *WatchEndedError
)

// NotReadyError: the daemon cannot tell where actors live.
type NotReadyError struct {
	State string // off, stopped, not_ready, or client: it resolves, and accepts no Executor
	Err   *kazahana.Error
}

func (e *NotReadyError) Error() string { return e.Err.Error() }
func (e *NotReadyError) Unwrap() error { return e.Err }

// PendingError: the wait is over, and the activation, or the passivation before
// it, is still under way. A later Resolve may succeed.
type PendingError struct {
	Cause string // the obstacle, if the daemon knows it
	Err   *kazahana.Error
}

func (e *PendingError) Error() string { return e.Err.Error() }
func (e *PendingError) Unwrap() error { return e.Err }

// ActivationFailedError: no process could activate the actor.
type ActivationFailedError struct {
	Cause string // the error of Executor.Activate, or why it was not called
	Err   *kazahana.Error
}

func (e *ActivationFailedError) Error() string { return e.Err.Error() }
func (e *ActivationFailedError) Unwrap() error { return e.Err }

// ActivationEndedError: an activation has ended, or it is not known whether it has. The
// process must stop acting for the actor.
type ActivationEndedError struct {
	Kind, Identity string
	Reason         string // passivated, disconnected, refused (by the daemon) or unanswered
	Err            error  // further details, or nil
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
	Err    error  // further details, or nil
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

// typed gives an answered error the type that belongs to its code.
func typed(err error) error {
	var e *kazahana.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case ErrNotReady:
		return &NotReadyError{e.Details["state"], e}
	case ErrPending:
		return &PendingError{e.Details["cause"], e}
	case ErrActivationFailed:
		return &ActivationFailedError{e.Details["cause"], e}
	}
	return err
}

func invalid(format string, args ...any) error {
	return &kazahana.Error{Code: kazahana.ErrInvalidParams, Message: fmt.Sprintf(format, args...)}
}
