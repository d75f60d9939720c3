package leaseapi

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/problem"
	"github.com/kazahana/kazahana/internal/provider"
)

// unavailableRetry is when to ask a server again after its provider failed.
const unavailableRetry = time.Second

// FromError converts a provider's error to a problem. It hides the text of errors that
// callers do not distinguish, because they may name files and hosts.
func FromError(err error, nowMS int64) *problem.Problem {
	var already *problem.Problem
	var full *provider.FullError
	var fenced *provider.FencedError
	var busy *provider.BusyError
	switch {
	case errors.As(err, &already):
		return already
	case errors.As(err, &full):
		p := problem.New(problem.NoMachineID, "%v", full).After(problem.Until(full.NextEndMS, nowMS))
		p.Pool, p.Slots, p.NextEndMS = full.Pool, full.Slots, full.NextEndMS
		return p
	case errors.As(err, &fenced):
		p := problem.New(problem.Fenced, "%v", fenced).After(problem.Until(fenced.UntilMS, nowMS))
		p.UntilMS, p.Reason = fenced.UntilMS, fenced.Reason
		return p
	case errors.As(err, &busy):
		p := problem.New(problem.Busy, "%v", busy).After(busy.RetryAfter)
		p.Reason = busy.Reason
		return p
	case errors.Is(err, provider.ErrConflict):
		return problem.New(problem.Conflict, "%v", err)
	case errors.Is(err, provider.ErrNotFound):
		return problem.New(problem.LeaseNotFound, "%v", err)
	case errors.Is(err, provider.ErrBadSignature):
		return problem.New(problem.BadSignature, "%v", err)
	case errors.Is(err, provider.ErrTimestampSkew):
		return problem.New(problem.TimestampSkew, "%v", err)
	case errors.Is(err, errors.ErrUnsupported):
		return problem.New(problem.NotSupported, "%v", err)
	case errors.Is(err, provider.ErrInvalid):
		return problem.New(problem.InvalidRequest, "%v", strings.TrimPrefix(err.Error(), provider.ErrInvalid.Error()+": "))
	}
	return problem.New(problem.Unavailable, "the store behind this server is unavailable; the server's log says why").After(unavailableRetry)
}

// ToError converts a problem to the error of package provider. If there is none for it,
// the result is the problem itself: the request may have been carried out.
func ToError(p *problem.Problem) error {
	switch p.Code {
	case problem.NoMachineID:
		return &provider.FullError{Pool: p.Pool, Slots: p.Slots, NextEndMS: p.NextEndMS}
	case problem.Fenced:
		return &provider.FencedError{UntilMS: p.UntilMS, Reason: p.Reason}
	case problem.Busy:
		return &provider.BusyError{RetryAfter: p.Retry(), Reason: p.Reason}
	case problem.RateLimited, problem.Overloaded: // refused before anything was done
		return &provider.BusyError{RetryAfter: p.Retry(), Reason: p.Error()}
	case problem.Conflict:
		return provider.ErrConflict
	case problem.LeaseNotFound:
		return provider.ErrNotFound
	case problem.BadSignature:
		return provider.ErrBadSignature
	case problem.TimestampSkew:
		return provider.ErrTimestampSkew
	case problem.InvalidRequest, problem.TooLarge, problem.UnsupportedMedia:
		return fmt.Errorf("%w: %s", provider.ErrInvalid, p.Error())
	case problem.NotSupported, problem.NotFound, problem.MethodNotAllowed: // the server is older than the path
		return fmt.Errorf("%s: %w", strings.TrimSuffix(p.Error(), ": "+errors.ErrUnsupported.Error()), errors.ErrUnsupported)
	}
	return p
}
