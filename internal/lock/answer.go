package lock

import "time"

// Answer is a lease as the socket and HTTP show it.
type Answer struct {
	TenantID     string `json:"tenant_id"`
	LockKey      string `json:"lock_key"`
	LeaseID      string `json:"lease_id"`
	OwnerID      string `json:"owner_id"`
	FencingToken int64  `json:"fencing_token"`
	State        Status `json:"state"`
	AcquiredAt   string `json:"acquired_at"` // RFC 3339 with ms, UTC, the store's clock
	ExpiresAt    string `json:"expires_at"`  // likewise
	// ExpiresInMS is how long the lease still lives, counted from the answer; 0
	// when it is not ACTIVE.
	ExpiresInMS int64 `json:"expires_in_ms"`
	// Note is a daemon's announcement with its membership: the kinds that it serves.
	Note string `json:"note,omitempty"`
}

const answerTime = "2006-01-02T15:04:05.000Z"

// showTime writes a time in Unix ms for people and answers.
func showTime(ms int64) string { return time.UnixMilli(ms).UTC().Format(answerTime) }

// Answer converts the lease.
func (l Lease) Answer() Answer {
	return Answer{
		TenantID: l.Tenant, LockKey: l.Key, LeaseID: l.LeaseID, OwnerID: l.Owner, FencingToken: l.Token, State: l.State,
		AcquiredAt: showTime(l.AcquiredMS), ExpiresAt: showTime(l.ExpiresMS), ExpiresInMS: l.RemainingMS, Note: l.Note,
	}
}

// Lease converts the answer; the error is about a time that cannot be read.
func (a Answer) Lease() (Lease, error) {
	acquired, err := time.Parse(time.RFC3339, a.AcquiredAt)
	if err != nil {
		return Lease{}, err
	}
	expires, err := time.Parse(time.RFC3339, a.ExpiresAt)
	if err != nil {
		return Lease{}, err
	}
	return Lease{
		Tenant: a.TenantID, Key: a.LockKey, LeaseID: a.LeaseID, Owner: a.OwnerID, Token: a.FencingToken, State: a.State,
		AcquiredMS: acquired.UnixMilli(), ExpiresMS: expires.UnixMilli(), RemainingMS: a.ExpiresInMS, Note: a.Note,
	}, nil
}
