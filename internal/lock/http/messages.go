package http

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/problem"
)

// Path is the path of the locks, below the server's URL: GET lists. GET Path/{key} shows one,
// POST Path/{key}/{operation} changes it.
const Path = "/v1/locks"

// Names of query parameters: of the list, and of all requests.
const (
	ParamAfter = "after"
	ParamLimit = "limit"
	ParamKey   = "lock_key" // of a GET: the key of the path again
	ParamArea  = "area"     // which of the tenant's locks are meant: without it those of its users
)

const (
	// AreaPlacement is the locks that a tenant's daemons hold for placement. A
	// daemon has one credential for these and for its users' locks: in the same
	// area, every user of its socket could make a member.
	AreaPlacement = "placement"
	// PlacementTenants is the end of the names of tenants by which stores know that area. No
	// tenant of a credential has such a name.
	PlacementTenants = "@" + AreaPlacement
)

const (
	// MaxWait is how long a server waits at most for a lock to become free. Proxies in
	// between wait longer for an answer. To wait longer, ask again with the same
	// request ID.
	MaxWait = 30 * time.Second
	// DefaultTTL is the term of an acquire that names none.
	DefaultTTL = 30 * time.Second
	// DefaultLimit is how many locks a page of the list has, unless it says so.
	DefaultLimit = 100
)

// Request is the body of an acquire, a renewal or a release. All members are
// optional.
type Request struct {
	LockKey     string  `json:"lock_key,omitempty"`    // the key of the path again: the server refuses another one
	Area        string  `json:"area,omitempty"`        // likewise the area of the query
	TTLSeconds  *int64  `json:"ttl_seconds,omitempty"` // acquire, renew: 1 to 86,400
	TTLMS       *int64  `json:"ttl_ms,omitempty"`      // the same in ms, 100 to 86,400,000; not both
	WaitMS      int64   `json:"wait_ms,omitempty"`     // acquire: how long to wait for it; at most MaxWait is waited
	RequestID   string  `json:"request_id,omitempty"`
	LeaseID     string  `json:"lease_id,omitempty"`     // acquire: the name of the lease that may be granted
	OwnerID     string  `json:"owner_id,omitempty"`     // the credential's owner, or that with "/" and a suffix
	OwnerSuffix *string `json:"owner_suffix,omitempty"` // the same by its suffix alone
	Note        string  `json:"note,omitempty"`         // acquire, renew, in AreaPlacement: the kinds that a member serves
}

// TTL is the term that the request asks for, 0 where it does not say.
func (r Request) TTL() (time.Duration, error) {
	const perDay = int64(24 * time.Hour / time.Second)
	switch {
	case r.TTLSeconds != nil && r.TTLMS != nil:
		return 0, fmt.Errorf("%w: ttl_seconds and ttl_ms say the same: give one of them", lock.ErrInvalid)
	case r.TTLMS != nil:
		if *r.TTLMS < lock.MinTTL.Milliseconds() || *r.TTLMS > lock.MaxTTL.Milliseconds() {
			return 0, fmt.Errorf("%w: ttl_ms of %d is not %d to %d", lock.ErrInvalid, *r.TTLMS, lock.MinTTL.Milliseconds(), lock.MaxTTL.Milliseconds())
		}
		return time.Duration(*r.TTLMS) * time.Millisecond, nil
	case r.TTLSeconds != nil:
		if *r.TTLSeconds < 1 || *r.TTLSeconds > perDay {
			return 0, fmt.Errorf("%w: ttl_seconds of %d is not 1 to %d", lock.ErrInvalid, *r.TTLSeconds, perDay)
		}
		return time.Duration(*r.TTLSeconds) * time.Second, nil
	}
	return 0, nil
}

// Answer is a lease.
type Answer struct {
	lock.Answer
	// OwnerSuffix is there when the owner is the caller's credential, and is what
	// owner_id has behind that.
	OwnerSuffix *string `json:"owner_suffix,omitempty"`
	// Repeated: nothing was done, this answers a request that was carried out
	// before.
	Repeated bool `json:"repeated,omitempty"`
	// WaitedMS is how long the server had the request until the moment that
	// ExpiresInMS counts from, if it was to wait. From when it was sent, the lease
	// lives for at least WaitedMS + ExpiresInMS.
	WaitedMS int64 `json:"waited_ms,omitempty"`
}

// Page is the answer to a list.
type Page struct {
	Locks []Answer `json:"locks"`
}

// FromError is the problem by which a store's refusal travels, nil for any other
// error.
func FromError(err error) *problem.Problem {
	var held *lock.HeldError
	var fenced *lock.FencedError
	switch {
	case errors.As(err, &held):
		p := problem.New(problem.LockHeld, "%v", held).After(time.Duration(held.RemainingMS) * time.Millisecond)
		p.OwnerID, p.FencingToken = held.Owner, held.Token
		p.ExpiresAt = lock.Lease{ExpiresMS: held.ExpiresMS}.Answer().ExpiresAt
		return p
	case errors.As(err, &fenced):
		p := problem.New(problem.LockFenced, "%v", fenced).After(time.Duration(fenced.RemainingMS) * time.Millisecond)
		p.UntilMS, p.Reason = fenced.UntilMS, fenced.Reason
		return p
	}
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			return problem.New(r.code, "%v", strings.TrimPrefix(err.Error(), lock.ErrInvalid.Error()+": "))
		}
	}
	return nil
}

// refusals are the refusals without members of their own.
var refusals = []struct {
	err  error
	code problem.Code
}{
	{lock.ErrRequestReused, problem.RequestIDReused},
	{lock.ErrNotOwned, problem.LockNotOwned},
	{lock.ErrExpired, problem.LockExpired},
	{lock.ErrNotFound, problem.LockNotFound},
	{lock.ErrInvalid, problem.InvalidRequest},
}

// toError is the refusal that the problem stands for. nil means that no store has judged
// the request.
func toError(key string, p *problem.Problem) error {
	switch p.Code {
	case problem.LockHeld:
		expires, err := lock.Answer{AcquiredAt: p.ExpiresAt, ExpiresAt: p.ExpiresAt}.Lease()
		if err != nil {
			return nil
		}
		return &lock.HeldError{
			Key: key, Owner: owner(p.OwnerID, p.OwnerSuffix), Token: p.FencingToken,
			ExpiresMS: expires.ExpiresMS, RemainingMS: p.RetryAfterMS,
			RequestID: string(p.RequestDigest), Mark: p.RequestMark,
		}
	case problem.LockFenced:
		return &lock.FencedError{UntilMS: p.UntilMS, RemainingMS: p.RetryAfterMS, Reason: p.Reason}
	}
	for _, r := range refusals {
		if r.code == p.Code {
			return fmt.Errorf("%w: %s", r.err, strings.TrimPrefix(p.Detail, r.err.Error()+": "))
		}
	}
	return nil
}

// owner is the owner of a lease as this host names it.
func owner(full string, suffix *string) string {
	if suffix == nil || *suffix == "" {
		return full
	}
	return *suffix
}
