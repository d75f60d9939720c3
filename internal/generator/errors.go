package generator

import (
	"errors"
	"fmt"
	"time"
)

// Errors without fields.
var (
	// ErrNoProvider: standalone, and a fallback ID was not allowed.
	ErrNoProvider = errors.New("no provider is configured, and a fallback ID was not allowed")
	// ErrOverflow: the timeline cannot hold the present time.
	ErrOverflow = errors.New("the layout's time is used up: no further ID can be made with this epoch and bit_ts")
	// ErrStopped: the generator has been stopped.
	ErrStopped = errors.New("the generator has been stopped")
)

// ClockBackwardError: the clock is further behind the last ID than allowed
// (seed 000, chapter 9).
type ClockBackwardError struct {
	BackwardMS int64 // how far the clock is behind, or how long it kept callers waiting
	LimitMS    int64 // max_backward
	Earlier    bool  // this life made no ID yet: it is the mark of earlier lives, or the epoch
}

// farAhead is how far behind an earlier life's IDs a clock must be for the mark
// to be taken for the culprit, and not the clock. Waiting is no use then.
const farAhead = time.Hour

// Advice names the cause and the remedy.
func (e *ClockBackwardError) Advice() string {
	switch {
	case e.Earlier && e.BackwardMS > farAhead.Milliseconds():
		return "an earlier run made IDs with a clock far ahead, or its mark was damaged; if this host's clock is right, " +
			"stop the daemon and run kazahanad state reset-floor"
	case e.Earlier:
		return "an earlier run made IDs with a clock ahead of this one; IDs go on once the clock has caught up"
	}
	return "let NTP slew the clock instead of stepping it"
}

func (e *ClockBackwardError) Error() string {
	return fmt.Sprintf("the clock is %d ms behind the last ID (or the epoch), and %d ms are allowed: %s", e.BackwardMS, e.LimitMS, e.Advice())
}

// LeaseAcquisitionError: there is no valid lease, and a fallback ID was not
// allowed (seed 000, chapter 9).
type LeaseAcquisitionError struct{ Cause error }

func (e *LeaseAcquisitionError) Error() string {
	if e.Cause == nil {
		return "no lease is valid now, and no fallback ID is allowed"
	}
	return "no lease is valid now, and no fallback ID is allowed: " + e.Cause.Error()
}

func (e *LeaseAcquisitionError) Unwrap() error { return e.Cause }

// TimeoutError: the caller's time ran out while it waited.
type TimeoutError struct {
	Waited time.Duration
	For    Wait // the cause of the wait
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("no ID within %v: waited for the %s", e.Waited.Round(time.Millisecond), e.For)
}

// Timeout marks the error as a timeout for callers that ask, as net.Error does.
func (e *TimeoutError) Timeout() bool { return true }
