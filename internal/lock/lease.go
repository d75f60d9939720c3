package lock

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/kazahana/kazahana/internal/keyname"
)

// Op is the operation of a Request.
type Op uint8

// The operations.
const (
	Acquire Op = iota + 1
	Renew
	Release
)

func (o Op) String() string {
	switch o {
	case Acquire:
		return "acquire"
	case Renew:
		return "renew"
	case Release:
		return "release"
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// Limits of a caller's texts and times.
const (
	MaxKey       = 512                  // bytes of UTF-8
	MaxRequestID = keyname.MaxRequestID // characters
	// MaxNote is in bytes: with it the part of a record that lists show (record.MaxHead)
	// has all that is known of the lease.
	MaxNote = 3072
	// MinTTL is the shortest term: with less, a renewal would be late by the
	// ordinary delays of a network and a scheduler.
	MinTTL = 100 * time.Millisecond
	MaxTTL = 24 * time.Hour
	// MaxToken keeps tokens exact in every JSON reader and in Lua. Counted in
	// microseconds of Unix time it is reached in the year 2255.
	MaxToken = 1<<53 - 1
	// KeepIdle is how long after its lease's end a key is remembered at least,
	// before a store may delete it. Its receipts go with it.
	KeepIdle = time.Hour
)

var (
	// ownerForm has room for a host's name and its user's.
	ownerForm   = keyname.NewForm(1, 128, "AZaz09..__@@:://++==--")
	leaseIDForm = keyname.NewForm(leaseDigits, leaseDigits, "09af")
)

// Request asks for one transition of one key.
type Request struct {
	Op     Op
	Tenant string // 1 to 64 of A-Z a-z 0-9 . _ @ -
	Key    string // 1 to MaxKey bytes of UTF-8 without control characters
	Owner  string // 1 to 128 of the tenant's characters and : / + =

	// RequestID makes the request safe to send again, within what a key remembers
	// (MaxReceipts): up to MaxRequestID visible ASCII characters, scoped to the tenant and
	// the key, best random. Empty means that it is never sent again.
	RequestID string

	// LeaseID is 32 hexadecimal digits. Acquire: the name of the lease that may
	// be granted, 128 random bits; a repeated request may bring another one.
	// Renew and Release: where it is not empty, the lease must be this one.
	LeaseID string

	// Announce gives watchers of a prefix of the key (Store.Changes) a token for an acquire and
	// for another Note too, where the store can.
	Announce bool

	// Note is a text that lists show of the lease, up to MaxNote bytes, of an Acquire or a Renew:
	// the latest counts.
	Note string

	// TTLMS is the term in ms from the store's now on, MinTTL to MaxTTL, of an Acquire or a
	// Renew. 0 of a Renew is the term that the lease was granted or renewed for last.
	TTLMS int64

	// Wait is how long an Acquire may wait for the lock, 0 for an answer at once. A Store heeds
	// it if it Waits. A Host does; a negative one is as long as the caller's context allows.
	Wait time.Duration

	// Elsewhere is for a Host: a caller that gives up may ask again with the same RequestID
	// on another one, so that a lease granted meanwhile must not be released.
	Elsewhere bool
}

// TTL is the term that the request asks for. A term that no Duration can hold becomes the longest
// Duration.
func (r Request) TTL() time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(min(max(r.TTLMS, -most), most)) * time.Millisecond
}

// Validate says what makes the request impossible; the error wraps ErrInvalid.
// Every Store calls it first.
func (r Request) Validate() error {
	if err := CheckKey(r.Tenant, r.Key); err != nil {
		return err
	}
	ttl := r.TTL()
	switch {
	case r.Op < Acquire || r.Op > Release:
		return fmt.Errorf("%w: there is no operation %v", ErrInvalid, r.Op)
	case !ownerForm.Matches(r.Owner):
		return fmt.Errorf("%w: owner %q must be 1 to 128 of A-Z a-z 0-9 . _ @ : / + = -", ErrInvalid, clip(r.Owner))
	case r.RequestID != "" && !keyname.RequestID.Matches(r.RequestID):
		return fmt.Errorf("%w: the request ID must be 1 to %d visible ASCII characters", ErrInvalid, MaxRequestID)
	case (r.Op == Acquire || r.LeaseID != "") && !leaseIDForm.Matches(r.LeaseID):
		return fmt.Errorf("%w: the lease ID must be 32 hexadecimal digits in lower case", ErrInvalid)
	case r.Op == Release && r.TTLMS != 0:
		return fmt.Errorf("%w: a release has no term", ErrInvalid)
	case len(r.Note) > MaxNote || r.Op == Release && r.Note != "":
		return fmt.Errorf("%w: the note has %d bytes: an acquire and a renewal may have %d, a release none", ErrInvalid, len(r.Note), MaxNote)
	case r.Op != Release && !(r.Op == Renew && r.TTLMS == 0) && (r.TTLMS > MaxTTL.Milliseconds() || ttl < MinTTL):
		return fmt.Errorf("%w: a term of %d ms is not between %v and %v", ErrInvalid, r.TTLMS, MinTTL, MaxTTL)
	}
	return nil
}

// CheckKey returns the fault of the name of a lock; the error wraps ErrInvalid.
func CheckKey(tenant, key string) error {
	if !keyname.Tenant.Matches(tenant) {
		return fmt.Errorf("%w: tenant %q must be 1 to 64 of A-Z a-z 0-9 . _ @ -", ErrInvalid, clip(tenant))
	}
	if err := keyname.Check(key, MaxKey); err != nil {
		return fmt.Errorf("%w: the key %w", ErrInvalid, err)
	}
	return nil
}

// CheckPage returns the fault of the parameters of a List; the error wraps ErrInvalid.
func CheckPage(tenant, after string, limit int) error {
	if limit < 1 || limit > MaxList {
		return fmt.Errorf("%w: a page has 1 to %d locks, not %d", ErrInvalid, MaxList, limit)
	}
	return CheckKey(tenant, cmp.Or(after, "-"))
}

// clip keeps a caller's text from filling a message.
func clip(s string) string { return s[:min(len(s), 64)] }

// Status is where a lease is in its life.
type Status string

// The states of a lease. From the last two there is no way back.
const (
	Active   Status = "ACTIVE"
	Released Status = "RELEASED"
	Expired  Status = "EXPIRED" // the store's now >= ExpiresMS
)

// Lease is a lock held by someone, or once held.
type Lease struct {
	Tenant  string
	Key     string
	LeaseID string // 32 hexadecimal digits
	Owner   string

	// Token is the fencing token, 1 to MaxToken: greater than every earlier lease's token of the
	// key.
	Token int64

	Note string // of the latest acquire or renewal

	State      Status
	AcquiredMS int64 // Unix ms, the store's clock
	ExpiresMS  int64 // Unix ms, the store's clock; as promised, also after a release

	// RemainingMS is how long the lease still lives, by the store's clock at the
	// moment of the answer; 0 when it is not ACTIVE. Counted from before the
	// request was sent, it needs no agreement between the clocks.
	RemainingMS int64

	// Repeated: nothing was done, this answers a request that was carried out
	// before.
	Repeated bool
}

func (l Lease) remaining() time.Duration { return time.Duration(l.RemainingMS) * time.Millisecond }
