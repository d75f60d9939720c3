package leaseapi

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/provider"
)

// Code says in one word what went wrong, and so what to do.
type Code string

// The codes.
const (
	CodeInvalidRequest   Code = "INVALID_REQUEST"        // 400: it can never succeed as it is
	CodeUnauthenticated  Code = "UNAUTHENTICATED"        // 401: no credential, or one that is not known
	CodeForbidden        Code = "FORBIDDEN"              // 403: the credential may not do this
	CodeBadSignature     Code = "BAD_SIGNATURE"          // 403: the lease is not the caller's (any more)
	CodeTimestampSkew    Code = "TIMESTAMP_SKEW"         // 403
	CodeLeaseNotFound    Code = "LEASE_NOT_FOUND"        // 404: the slot was never granted
	CodeNotFound         Code = "NOT_FOUND"              // 404: no such path
	CodeMethodNotAllowed Code = "METHOD_NOT_ALLOWED"     // 405
	CodeConflict         Code = "CONFLICT"               // 409: the request's or the lease's time is over
	CodeTooLarge         Code = "REQUEST_TOO_LARGE"      // 413
	CodeUnsupportedMedia Code = "UNSUPPORTED_MEDIA_TYPE" // 415: a body that is not JSON
	CodeRateLimited      Code = "RATE_LIMITED"           // 429, with Retry-After
	CodeNotSupported     Code = "NOT_SUPPORTED"          // 501: the provider behind the server cannot do it
	CodeNoMachineID      Code = "NO_MACHINE_ID"          // 503, with Retry-After
	CodeFenced           Code = "FENCED"                 // 503, with Retry-After
	CodeBusy             Code = "PROVIDER_BUSY"          // 503, with Retry-After
	CodeOverloaded       Code = "OVERLOADED"             // 503, with Retry-After: this server has too much to do
	CodeUnavailable      Code = "PROVIDER_UNAVAILABLE"   // 503, with Retry-After: the provider behind the server failed
)

// status is the HTTP status of each code.
var status = map[Code]int{
	CodeInvalidRequest: http.StatusBadRequest, CodeUnauthenticated: http.StatusUnauthorized,
	CodeForbidden: http.StatusForbidden, CodeBadSignature: http.StatusForbidden, CodeTimestampSkew: http.StatusForbidden,
	CodeLeaseNotFound: http.StatusNotFound, CodeNotFound: http.StatusNotFound,
	CodeMethodNotAllowed: http.StatusMethodNotAllowed, CodeConflict: http.StatusConflict,
	CodeTooLarge: http.StatusRequestEntityTooLarge, CodeUnsupportedMedia: http.StatusUnsupportedMediaType,
	CodeRateLimited: http.StatusTooManyRequests, CodeNotSupported: http.StatusNotImplemented,
	CodeNoMachineID: http.StatusServiceUnavailable, CodeFenced: http.StatusServiceUnavailable,
	CodeBusy: http.StatusServiceUnavailable, CodeOverloaded: http.StatusServiceUnavailable,
	CodeUnavailable: http.StatusServiceUnavailable,
}

// Codes returns every code with its HTTP status.
func Codes() map[Code]int {
	all := make(map[Code]int, len(status))
	for c, s := range status {
		all[c] = s
	}
	return all
}

// Retry-After, in whole seconds, is kept between these. A daemon decides by the
// more precise members of the problem, and a fence may be lifted early.
const (
	minRetryAfter = time.Second
	maxRetryAfter = time.Minute
)

// Problem is an RFC 9457 problem. Members beyond code and detail go with some
// codes only.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   Code   `json:"code"`

	Pool         string `json:"pool,omitempty"`         // NO_MACHINE_ID
	Slots        int64  `json:"slots,omitempty"`        // NO_MACHINE_ID
	NextEndMS    int64  `json:"nextEnd,omitempty"`      // NO_MACHINE_ID: Unix ms
	UntilMS      int64  `json:"until,omitempty"`        // FENCED: Unix ms
	Reason       string `json:"reason,omitempty"`       // FENCED, PROVIDER_BUSY
	RetryAfterMS int64  `json:"retryAfterMs,omitempty"` // whenever Retry-After is sent
}

// NewProblem is a problem with this code.
func NewProblem(code Code, format string, args ...any) *Problem {
	s, ok := status[code]
	if !ok {
		panic("leaseapi: the code " + string(code) + " has no HTTP status")
	}
	return &Problem{Type: "about:blank", Title: http.StatusText(s), Status: s, Code: code, Detail: fmt.Sprintf(format, args...)}
}

// Error implements error.
func (p *Problem) Error() string {
	switch {
	case p.Detail == "" && p.Code == "":
		return fmt.Sprintf("HTTP %d %s", p.Status, http.StatusText(p.Status))
	case p.Detail == "":
		return fmt.Sprintf("%s (HTTP %d)", p.Code, p.Status)
	}
	return p.Detail
}

// After has the problem say when to come back.
func (p *Problem) After(d time.Duration) *Problem {
	p.RetryAfterMS = max(d, time.Millisecond).Milliseconds()
	return p
}

// RetryAfter is the header's value, "" for none.
func (p *Problem) RetryAfter() string {
	if p.RetryAfterMS <= 0 {
		return ""
	}
	d := time.Duration(min(p.RetryAfterMS, maxRetryAfter.Milliseconds())) * time.Millisecond
	return strconv.Itoa(int(math.Ceil(max(d, minRetryAfter).Seconds())))
}

// unavailableRetry is when to ask again a server whose provider failed.
const unavailableRetry = time.Second

// FromError is the problem by which the provider's error travels. Of errors by
// which nobody decides it tells nothing: they may name files and hosts.
func FromError(err error, nowMS int64) *Problem {
	var problem *Problem
	var full *provider.FullError
	var fenced *provider.FencedError
	var busy *provider.BusyError
	until := func(ms int64) time.Duration {
		return time.Duration(min(max(ms-nowMS, 0), maxRetryAfter.Milliseconds())) * time.Millisecond
	}
	switch {
	case errors.As(err, &problem):
		return problem
	case errors.As(err, &full):
		p := NewProblem(CodeNoMachineID, "%v", full).After(until(full.NextEndMS))
		p.Pool, p.Slots, p.NextEndMS = full.Pool, full.Slots, full.NextEndMS
		return p
	case errors.As(err, &fenced):
		p := NewProblem(CodeFenced, "%v", fenced).After(until(fenced.UntilMS))
		p.UntilMS, p.Reason = fenced.UntilMS, fenced.Reason
		return p
	case errors.As(err, &busy):
		p := NewProblem(CodeBusy, "%v", busy).After(busy.RetryAfter)
		p.Reason = busy.Reason
		return p
	case errors.Is(err, provider.ErrConflict):
		return NewProblem(CodeConflict, "%v", err)
	case errors.Is(err, provider.ErrNotFound):
		return NewProblem(CodeLeaseNotFound, "%v", err)
	case errors.Is(err, provider.ErrBadSignature):
		return NewProblem(CodeBadSignature, "%v", err)
	case errors.Is(err, provider.ErrTimestampSkew):
		return NewProblem(CodeTimestampSkew, "%v", err)
	case errors.Is(err, errors.ErrUnsupported):
		return NewProblem(CodeNotSupported, "%v", err)
	case errors.Is(err, provider.ErrInvalid):
		return NewProblem(CodeInvalidRequest, "%v", strings.TrimPrefix(err.Error(), provider.ErrInvalid.Error()+": "))
	}
	return NewProblem(CodeUnavailable, "the provider behind this server is unavailable; the server's log says why").After(unavailableRetry)
}

// Err is the error of package provider that the problem stands for. Where none
// fits it is the problem itself: whatever was asked for may have been done.
func (p *Problem) Err() error {
	retry := time.Duration(min(p.RetryAfterMS, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
	switch p.Code {
	case CodeNoMachineID:
		return &provider.FullError{Pool: p.Pool, Slots: p.Slots, NextEndMS: p.NextEndMS}
	case CodeFenced:
		return &provider.FencedError{UntilMS: p.UntilMS, Reason: p.Reason}
	case CodeBusy:
		return &provider.BusyError{RetryAfter: retry, Reason: p.Reason}
	case CodeRateLimited, CodeOverloaded: // refused before anything was done
		return &provider.BusyError{RetryAfter: retry, Reason: p.Error()}
	case CodeConflict:
		return provider.ErrConflict
	case CodeLeaseNotFound:
		return provider.ErrNotFound
	case CodeBadSignature:
		return provider.ErrBadSignature
	case CodeTimestampSkew:
		return provider.ErrTimestampSkew
	case CodeInvalidRequest, CodeTooLarge, CodeUnsupportedMedia:
		return fmt.Errorf("%w: %s", provider.ErrInvalid, p.Error())
	case CodeNotSupported, CodeNotFound, CodeMethodNotAllowed: // of a server that is older than the path
		return fmt.Errorf("%s: %w", strings.TrimSuffix(p.Error(), ": "+errors.ErrUnsupported.Error()), errors.ErrUnsupported)
	}
	return p
}
