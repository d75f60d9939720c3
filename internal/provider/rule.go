package provider

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ReleasedEnd is the end of a grant after a valid release: from then on its
// slot can be granted again.
//
// It is never later than the end before. Once that has passed, an overlapping
// slot may have been granted, and a late release that moved the end behind
// that grant's beginning would make the two overlap.
func ReleasedEnd(created, end, timestampMS int64) int64 {
	return min(end, max(timestampMS+1, created))
}

// Apply is the grant as the release leaves it; false where it was released before. The grant has
// its secret.
func (r ReleaseRequest) Apply(to Record, nowMS int64) (after Record, changed bool, err error) {
	if !r.Signed(to.Lease.Secret) {
		return Record{}, false, ErrBadSignature
	}
	// A release that took effect is not refused when it is repeated, at any time: its holder
	// would take the lease for its own.
	if to.Released {
		return to, false, nil
	}
	if err := r.CheckTime(nowMS, to.Lease.Expired); err != nil {
		return Record{}, false, err
	}
	to.End, to.Released = ReleasedEnd(to.Lease.Created, to.End, r.TimestampMS), true
	return to, true, nil
}

// Apply is the grant as the extension leaves it. The grant has its secret.
func (r ExtendRequest) Apply(to Record, t Terms, nowMS int64) (Record, error) {
	if !r.Signed(to.Lease.Secret) {
		return Record{}, ErrBadSignature
	}
	if to.Released || nowMS >= to.Lease.Expired {
		return Record{}, ErrConflict
	}
	if err := t.CheckClock(nowMS); err != nil {
		return Record{}, err
	}
	to.Lease.Expired, to.End = r.Extended(t, nowMS, to.Lease.Expired, to.End)
	to.Lease.ReservedUntil = to.End
	return to, nil
}

// Lost reports whether the claimed lease is no longer the claimant's, by the latest grant of its
// slot with its secret, nil where there is none. A slot without a grant, or with an older one,
// says nothing in a fenced store: the fence outlasts every lease that was lost.
func (c Claim) Lost(latest *Record, fenced bool) bool {
	switch {
	case latest == nil:
		return !fenced
	case c.Signed(latest.Lease.Secret):
		return latest.Released
	case latest.Lease.Created >= c.CreatedMS:
		return true // taken over
	}
	return !fenced
}

// HeldAt reports whether the grant was valid at that time.
func (r Record) HeldAt(atMS int64) bool {
	ended := r.Lease.Expired
	if r.Released {
		ended = min(ended, r.End)
	}
	return r.Lease.Created <= atMS && atMS < ended
}

// Extended is the end of a lease after a valid extension, and until when its slot
// is taken then. A request that knows an earlier end than the lease has is a
// repetition, and moves nothing.
//
// The slot is taken for longer only where the lease is, and then until a term and its quarantine
// from now at most: for so long a store is fenced that forgets the extension.
func (r ExtendRequest) Extended(t Terms, nowMS, expiredMS, endMS int64) (expired, end int64) {
	longer := nowMS + t.Term.Milliseconds()
	if r.ExpiredMS < expiredMS || longer <= expiredMS {
		return expiredMS, endMS
	}
	return longer, max(endMS, nowMS+t.LongestMS())
}

// CheckTime reports ErrTimestampSkew when the timestamp is further than
// ReleaseWindow from the provider's time, and is not the last of a lease until
// expiredMS that the request gives back AtEnd.
func (r ReleaseRequest) CheckTime(nowMS, expiredMS int64) error {
	window := ReleaseWindow.Milliseconds()
	if r.AtEnd && r.TimestampMS == expiredMS-1 {
		return nil
	}
	if r.TimestampMS < nowMS-window || r.TimestampMS > nowMS+window {
		return ErrTimestampSkew
	}
	return nil
}

// Limits on the content of a request, so that one peer cannot fill a store.
const (
	MaxNameBytes = 200       // of a service name and of a request ID
	MaxMetaBytes = 16 * 1024 // of all keys and values of meta together
	MaxMetaKeys  = 64
)

// Validate reports, wrapping ErrInvalid, what no provider would store.
func (r AcquireRequest) Validate() error {
	size := 0
	for k, v := range r.Meta {
		size += len(k) + len(v)
	}
	switch {
	case !validName(r.Service):
		return fmt.Errorf("%w: the service's name is longer than %d bytes, has a NUL byte or is not UTF-8", ErrInvalid, MaxNameBytes)
	case !validName(r.RequestID):
		return fmt.Errorf("%w: the request ID is longer than %d bytes, has a NUL byte or is not UTF-8", ErrInvalid, MaxNameBytes)
	case size > MaxMetaBytes || len(r.Meta) > MaxMetaKeys:
		return fmt.Errorf("%w: meta has more than %d keys or %d bytes", ErrInvalid, MaxMetaKeys, MaxMetaBytes)
	}
	for k, v := range r.Meta {
		if !validText(k) || !validText(v) {
			return fmt.Errorf("%w: meta %q has a NUL byte or is not UTF-8, in its key or value", ErrInvalid, k)
		}
	}
	return nil
}

func validName(s string) bool { return len(s) <= MaxNameBytes && validText(s) }

// validText is what records, logs and JSON can hold.
func validText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// NewSecret is 128 random bits in hex: a lease's secret, or a request ID.
func NewSecret() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand ends the program instead)
	return hex.EncodeToString(b[:])
}

// CompareRecords orders records as List returns them: by the slot's start,
// then by bit_seq.
func CompareRecords(a, b Record) int {
	return cmp.Or(cmp.Compare(a.Lease.Slot().Start, b.Lease.Slot().Start), cmp.Compare(a.Lease.BitSeq, b.Lease.BitSeq))
}
