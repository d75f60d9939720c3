// Package problem has the errors of the lease server's HTTP API: RFC 9457 problems with a code
// that says what to do. It does no I/O.
package problem

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"strconv"
	"time"
)

// MediaType is the media type of a problem.
const MediaType = "application/problem+json"

// Code is the kind of an error.
type Code string

// The codes.
const (
	InvalidRequest   Code = "INVALID_REQUEST"        // 400: it can never succeed as it is
	KeyMismatch      Code = "KEY_MISMATCH"           // 400: the key of the path is not the one of the body or query
	Unauthenticated  Code = "UNAUTHENTICATED"        // 401: no credential, or an unknown one
	Forbidden        Code = "FORBIDDEN"              // 403: the credential may not do this
	BadSignature     Code = "BAD_SIGNATURE"          // 403: the lease is not the caller's (any more)
	TimestampSkew    Code = "TIMESTAMP_SKEW"         // 403
	LeaseNotFound    Code = "LEASE_NOT_FOUND"        // 404: the slot was never granted
	LockNotFound     Code = "LOCK_NOT_FOUND"         // 404: the store does not know the key
	NotFound         Code = "NOT_FOUND"              // 404: no such path
	MethodNotAllowed Code = "METHOD_NOT_ALLOWED"     // 405
	Conflict         Code = "CONFLICT"               // 409: the request's or the lease's time is over
	LockHeld         Code = "LOCK_HELD"              // 409: another owner holds the lock
	LockNotOwned     Code = "LOCK_NOT_OWNED"         // 409: the lock's lease is not the caller's
	LockExpired      Code = "LOCK_EXPIRED"           // 409: the lease was the caller's, and its term is over
	RequestIDReused  Code = "REQUEST_ID_REUSED"      // 409: the request ID stands for something else
	SequenceUsedUp   Code = "SEQUENCE_EXHAUSTED"     // 409: too few values are left before the key's maximum
	PlacementStale   Code = "PLACEMENT_STALE"        // 409: the stored activation record is not older
	TooLarge         Code = "REQUEST_TOO_LARGE"      // 413
	UnsupportedMedia Code = "UNSUPPORTED_MEDIA_TYPE" // 415: a body that is not JSON
	RateLimited      Code = "RATE_LIMITED"           // 429, with Retry-After
	NotSupported     Code = "NOT_SUPPORTED"          // 501: the store behind the server cannot do it
	NoMachineID      Code = "NO_MACHINE_ID"          // 503, with Retry-After
	Fenced           Code = "FENCED"                 // 503, with Retry-After
	LockFenced       Code = "LOCK_FENCED"            // 503, with Retry-After
	SequenceFenced   Code = "SEQUENCE_FENCED"        // 503, with Retry-After
	Busy             Code = "PROVIDER_BUSY"          // 503, with Retry-After
	Overloaded       Code = "OVERLOADED"             // 503, with Retry-After: this server has too much to do, or stops
	StoreFull        Code = "STORE_FULL"             // 503, with Retry-After: the store has no room for a new key
	Unavailable      Code = "PROVIDER_UNAVAILABLE"   // 503, with Retry-After: the store behind the server failed
)

// status is the HTTP status of each code.
var status = map[Code]int{
	InvalidRequest: http.StatusBadRequest, KeyMismatch: http.StatusBadRequest, Unauthenticated: http.StatusUnauthorized,
	Forbidden: http.StatusForbidden, BadSignature: http.StatusForbidden, TimestampSkew: http.StatusForbidden,
	LeaseNotFound: http.StatusNotFound, LockNotFound: http.StatusNotFound, NotFound: http.StatusNotFound,
	MethodNotAllowed: http.StatusMethodNotAllowed, Conflict: http.StatusConflict,
	LockHeld: http.StatusConflict, LockNotOwned: http.StatusConflict, LockExpired: http.StatusConflict,
	RequestIDReused: http.StatusConflict, SequenceUsedUp: http.StatusConflict, PlacementStale: http.StatusConflict,
	TooLarge: http.StatusRequestEntityTooLarge, UnsupportedMedia: http.StatusUnsupportedMediaType,
	RateLimited: http.StatusTooManyRequests, NotSupported: http.StatusNotImplemented,
	NoMachineID: http.StatusServiceUnavailable, Fenced: http.StatusServiceUnavailable,
	LockFenced: http.StatusServiceUnavailable, SequenceFenced: http.StatusServiceUnavailable,
	Busy: http.StatusServiceUnavailable, Overloaded: http.StatusServiceUnavailable, StoreFull: http.StatusServiceUnavailable, Unavailable: http.StatusServiceUnavailable,
}

// Codes returns every code with its HTTP status.
func Codes() map[Code]int { return maps.Clone(status) }

// Limits of Retry-After, in whole seconds: a fence may be lifted early, and programs use
// the more precise members of the problem.
const (
	minRetryAfter = time.Second
	maxRetryAfter = time.Minute
)

// Problem is an RFC 9457 problem. Members other than code and detail belong to certain
// codes.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   Code   `json:"code"`

	RetryAfterMS int64 `json:"retryAfterMs,omitempty"` // whenever Retry-After is sent

	Pool      string `json:"pool,omitempty"`    // NO_MACHINE_ID
	Slots     int64  `json:"slots,omitempty"`   // NO_MACHINE_ID
	NextEndMS int64  `json:"nextEnd,omitempty"` // NO_MACHINE_ID: Unix ms
	UntilMS   int64  `json:"until,omitempty"`   // fences: Unix ms
	Reason    string `json:"reason,omitempty"`  // fences, PROVIDER_BUSY

	OwnerID      string  `json:"owner_id,omitempty"`      // LOCK_HELD: the owner of the lock
	OwnerSuffix  *string `json:"owner_suffix,omitempty"`  // LOCK_HELD: if the owner is the caller's credential
	FencingToken int64   `json:"fencing_token,omitempty"` // LOCK_HELD
	ExpiresAt    string  `json:"expires_at,omitempty"`    // LOCK_HELD: RFC 3339
	// LOCK_HELD, if the caller's credential made the acquire: what the store keeps of its request
	// ID, and what the server has put into that (keyname.MarkedRequestID).
	RequestDigest []byte `json:"request_digest,omitempty"`
	RequestMark   string `json:"request_mark,omitempty"`

	Setting string `json:"setting,omitempty"` // STORE_FULL: the limit's configuration key, unless the disk is full
	Limit   int64  `json:"limit,omitempty"`   // STORE_FULL: its value, or the part of it that is the payer's
	Payer   string `json:"payer,omitempty"`   // STORE_FULL: the payer that used it up; absent where all have

	MaxValue int64  `json:"max_value,omitempty"` // SEQUENCE_EXHAUSTED
	Left     *int64 `json:"left,omitempty"`      // SEQUENCE_EXHAUSTED: how many values are left
	Recorded string `json:"recorded,omitempty"`  // INVALID_REQUEST: how the sequence counts
	Asked    string `json:"asked,omitempty"`     // INVALID_REQUEST: how the request wants it to count
}

// New is a problem with this code.
func New(code Code, format string, args ...any) *Problem {
	s, ok := status[code]
	if !ok {
		panic("problem: the code " + string(code) + " has no HTTP status")
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

// After sets when to come back.
func (p *Problem) After(d time.Duration) *Problem {
	p.RetryAfterMS = max(d, time.Millisecond).Milliseconds()
	return p
}

// Until is the time from now to a moment in Unix ms, limited to sensible values.
func Until(ms, nowMS int64) time.Duration {
	return time.Duration(min(max(ms-nowMS, 0), maxRetryAfter.Milliseconds())) * time.Millisecond
}

// Retry is when to come back; 0 if the problem does not say.
func (p *Problem) Retry() time.Duration {
	return time.Duration(min(max(p.RetryAfterMS, 0), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// RetryAfter is the header's value, "" for none.
func (p *Problem) RetryAfter() string {
	if p.RetryAfterMS <= 0 {
		return ""
	}
	d := time.Duration(min(p.RetryAfterMS, maxRetryAfter.Milliseconds())) * time.Millisecond
	return strconv.Itoa(int(math.Ceil(max(d, minRetryAfter).Seconds())))
}
