package provider

import (
	"errors"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// Errors without fields. Callers decide with errors.Is.
var (
	// ErrConflict: the request ID was used before, and its leases have been
	// released or have ended. Ask again with a new one.
	ErrConflict = errors.New("this request ID was used before and its leases have ended")
	// ErrNotFound: the slot was never granted.
	ErrNotFound = errors.New("no such lease")
	// ErrBadSignature: the signature does not verify against the slot's
	// present lease.
	ErrBadSignature = errors.New("the release's signature does not match the lease")
	// ErrTimestampSkew: the release's timestamp is too far from the
	// provider's time.
	ErrTimestampSkew = fmt.Errorf("the release's timestamp is more than %v from the provider's time", ReleaseWindow)
	// ErrInvalid: the request can never succeed as it is.
	ErrInvalid = errors.New("invalid request")
	// ErrNone: there is no provider; every ID is a fallback ID.
	ErrNone = errors.New("no provider is configured")
	// ErrNotSent: the request was not sent, and will not be: the server cannot be
	// reached, the context was over before, the provider is closed. Nothing was
	// changed. Errors wrap it only where that is certain: a call that may have
	// been sent, even to be repeated, fails without it.
	ErrNotSent = connurl.ErrNotSent
)

// NotSent returns err as an error that wraps ErrNotSent.
func NotSent(err error) error { return connurl.NotSent(err) }

// FullError: every slot of the pool is taken.
type FullError struct {
	Pool      string
	Slots     int64 // how many slots the pool has in the layout asked for
	NextEndMS int64 // Unix ms at which the next slot can be granted, if none is released sooner; 0 when not known
}

func (e *FullError) Error() string {
	s := fmt.Sprintf("all %d machine IDs of pool %q are taken", e.Slots, e.Pool)
	if e.NextEndMS > 0 {
		s += "; the next one is free at " + snowflake.FormatMS(e.NextEndMS)
	}
	return s
}

// FencedError: the store may have forgotten grants. It grants, repeats and extends nothing
// until every grant that could have been lost has ended.
type FencedError struct {
	UntilMS int64 // Unix ms
	Reason  string
}

func (e *FencedError) Error() string {
	return fmt.Sprintf("grants are refused until %s: %s", snowflake.FormatMS(e.UntilMS), e.Reason)
}

// BusyError: the provider is well but asks for patience.
type BusyError struct {
	RetryAfter time.Duration // the same for all that were refused together: see Wait
	Reason     string
}

const (
	// spread is over how long hosts come back that were refused together, at least. Of 4,000
	// that began at once, on an API server of Kubernetes with two processors, the last had its
	// machine ID after 24 s to 42 s; where they came back in the second that the server asks
	// for, after 116 s.
	spread = 12 * time.Second
	// mostRetry bounds the wait that a provider may ask for, in any unit that it meant.
	mostRetry = 10 * time.Minute
)

// Wait is after how long the provider is asked again: least, or longer if it asks for that,
// and a part by chance. A server asks all that it refuses in one second for the same time. If
// they came back in one moment, it would refuse most of them again. random is in [0, 1).
func (e *BusyError) Wait(least time.Duration, random float64) time.Duration {
	asked := min(e.RetryAfter, mostRetry)
	return max(asked, least) + time.Duration(random*float64(max(asked, spread)))
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("the provider asks to come back in %v: %s", e.RetryAfter, e.Reason)
}
