package embed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/state"
)

// Errors without fields, for errors.Is. Errors with fields have types of their own, for
// errors.As. Names are those of the clients.
var (
	ErrClosed            = errors.New("embed: the generator is closed")
	ErrNoProvider        = errors.New("embed: no provider is configured, and fallback IDs are not allowed")
	ErrTimestampOverflow = errors.New("embed: the layout's time is used up: no further ID can be made with this epoch and number of timestamp bits")
	ErrInvalidParams     = errors.New("embed: invalid request")
	ErrNoStore           = errors.New("embed: there is no store for sequences: set Config.Store, or Config.StateDir")
	ErrStoreUnavailable  = errors.New("embed: the store of sequences failed; what it did is not known: ask again with the same WithRequestID")
	ErrRequestIDReused   = errors.New("embed: the request ID was used before, for another number of values")
	ErrOverloaded        = errors.New("embed: a limit of the store is reached")
	ErrStoreFull         = errors.New("embed: the store has no room for a new key")
)

// inner is the error of the room below that an error with fields is about.
type inner struct{ err error }

func (e inner) Error() string { return "embed: " + e.err.Error() }
func (e inner) Unwrap() error { return e.err }

// ConfigError: the Config is wrong, or the provider's store contradicts it. Trying again is
// of no use.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return "embed: " + e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// StateInUseError: another process, or another Generator of this one, uses the state
// directory.
type StateInUseError struct {
	PID  int    // of the process; 0 if it is not known
	Path string // the file that names the process
	inner
}

// StateError: a file or a directory of the local state cannot be used.
type StateError struct {
	Path   string
	Remedy string // what to do about it; may be empty
	// Lasting: the error stays until its cause is removed. Others, such as a full disk, may
	// pass.
	Lasting bool
	inner
}

// ClockBackwardError: the clock is behind the last ID by more than Config.MaxBackward.
type ClockBackwardError struct {
	Backward, Limit time.Duration
	inner
}

// LeaseAcquisitionError: no lease is valid, and a fallback ID is not allowed.
type LeaseAcquisitionError struct {
	Cause error // why there is no lease, if that is known
	inner
}

// TimeoutError: no ID came within DefaultTimeout. It also is context.DeadlineExceeded.
type TimeoutError struct {
	Waited time.Duration
	Cause  string // the cause of the wait: clock, sequence or lease
	inner
}

// Is reports whether target is context.DeadlineExceeded.
func (e *TimeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// Timeout returns true, for net.Error.
func (e *TimeoutError) Timeout() bool { return true }

// SequenceExhaustedError: the key has fewer values left than the request wants. None was
// taken.
type SequenceExhaustedError struct {
	MaxValue, Left int64
	inner
}

// SequenceFencedError: the store may have forgotten values of the key, and hands out none
// that could be among them. The zero time means: until an operator says how to go on
// (docs/sequences.md).
type SequenceFencedError struct {
	Until time.Time
	inner
}

func outOfRange(n int) error {
	return fmt.Errorf("%w: a count of %d is out of range: 1 to %d", ErrInvalidParams, n, MaxBatch)
}

func openError(err error) error {
	var settings *issuer.SettingsError
	var locked *state.LockedError
	var file *state.FileError
	switch {
	case errors.As(err, &settings):
		return &ConfigError{err}
	case errors.As(err, &locked):
		return &StateInUseError{PID: locked.PID, Path: locked.Path, inner: inner{err}}
	case errors.As(err, &file):
		return &StateError{Path: file.Path, Remedy: file.Remedy, Lasting: file.Lasting(), inner: inner{err}}
	}
	return fmt.Errorf("embed: %w", err)
}

func idError(err error) error {
	var backward *generator.ClockBackwardError
	var acquisition *generator.LeaseAcquisitionError
	var timeout *generator.TimeoutError
	switch {
	case errors.As(err, &backward):
		return &ClockBackwardError{Backward: milliseconds(backward.BackwardMS), Limit: milliseconds(backward.LimitMS), inner: inner{err}}
	case errors.As(err, &acquisition):
		return &LeaseAcquisitionError{Cause: acquisition.Cause, inner: inner{err}}
	case errors.As(err, &timeout):
		return &TimeoutError{Waited: timeout.Waited, Cause: timeout.For.String(), inner: inner{err}}
	case errors.Is(err, generator.ErrNoProvider):
		return ErrNoProvider
	case errors.Is(err, generator.ErrOverflow):
		return ErrTimestampOverflow
	case errors.Is(err, generator.ErrStopped):
		return ErrClosed
	}
	return err
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func sequenceError(err error) error {
	var exhausted *sequence.ExhaustedError
	var fenced *sequence.FencedError
	var full *record.FullError
	switch {
	case errors.As(err, &exhausted):
		return &SequenceExhaustedError{MaxValue: exhausted.Max, Left: exhausted.Left, inner: inner{err}}
	case errors.As(err, &fenced):
		e := &SequenceFencedError{inner: inner{err}}
		if fenced.UntilMS > 0 {
			e.Until = time.UnixMilli(fenced.UntilMS)
		}
		return e
	case errors.Is(err, sequence.ErrRequestReused):
		return fmt.Errorf("%w: %w", ErrRequestIDReused, err)
	case errors.Is(err, sequence.ErrInvalid):
		return fmt.Errorf("%w: %w", ErrInvalidParams, err)
	case errors.As(err, &full):
		return fmt.Errorf("%w: %w", ErrStoreFull, err)
	case errors.Is(err, record.ErrCrowded):
		return fmt.Errorf("%w: %w", ErrOverloaded, err)
	}
	return fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
}
