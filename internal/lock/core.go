package lock

import (
	"cmp"
	"fmt"

	"github.com/kazahana/kazahana/internal/keyname"
)

// State is everything that a store remembers of one key.
type State struct {
	Token      int64  // of the latest lease; 0: the key is unknown
	LeaseID    string // of the latest lease, like all up to Life
	Owner      string
	Status     Status
	AcquiredMS int64  // Unix ms
	ExpiresMS  int64  // Unix ms
	RequestID  string // of the acquire, as it is kept, and its term
	TTLMS      int64
	TermMS     int64  // of the latest acquire or renewal
	Note       string // likewise
	Life       uint64 // of the store, when the lease was granted

	// Answers are the receipts of earlier acquires and of renewals, and Releases those of
	// releases: oldest first, at most MaxReceipts of each.
	Answers, Releases []Receipt
}

// Known is a store's knowledge of a key, and of itself, at one moment.
type Known struct {
	// State is the zero value when there is no record. A lease that has ended by the
	// store's judgement is EXPIRED.
	State  State
	LeftMS int64 // the rest of an ACTIVE lease, by the store's judgement
	NowMS  int64 // Unix ms

	// Life is the store's present one. A key without a record, or with one from another
	// life, may have had leases that were forgotten: its next token is above Floor too.
	Life  uint64
	Floor int64

	// FencedUntilMS, Unix ms: no lease is granted before, because a forgotten one
	// may be alive. FenceReason is for people.
	FencedUntilMS int64
	FenceReason   string
}

// token is the key's current token.
func (k Known) token() int64 {
	if k.State.Token > 0 && k.State.Life == k.Life {
		return k.State.Token
	}
	return max(k.State.Token, k.Floor)
}

// Lease is the key's latest lease, with so much left of it if it is ACTIVE.
func (s State) Lease(tenant, key string, leftMS int64) Lease {
	l := Lease{
		Tenant: tenant, Key: key, LeaseID: s.LeaseID, Owner: s.Owner, Token: s.Token,
		Note: s.Note, State: s.Status, AcquiredMS: s.AcquiredMS, ExpiresMS: s.ExpiresMS,
	}
	if s.Status == Active {
		l.RemainingMS = leftMS
	}
	return l
}

// Apply is the transition of LS-SPEC-001, section 3. It returns the state that
// the store must write before it answers, and the answer, both as of k.NowMS. With
// an error, or when the answer is Repeated, there is nothing to write.
//
// The request is valid.
func Apply(k Known, r Request) (State, Lease, error) {
	if r.RequestID != "" {
		if again, l, err := k.repeat(r); again {
			return k.State, l, err
		}
	}
	var s State
	var err error
	if r.Op == Acquire {
		s, err = k.acquire(r)
	} else {
		s, err = k.change(r)
	}
	if err != nil {
		return k.State, Lease{}, err
	}
	return s, s.Lease(r.Tenant, r.Key, s.TermMS), nil
}

func (k Known) acquire(r Request) (State, error) {
	s := k.State
	if s.Status == Active {
		return s, &HeldError{
			Key: r.Key, Owner: s.Owner, Token: s.Token, ExpiresMS: s.ExpiresMS, RemainingMS: max(1, k.LeftMS), RequestID: s.RequestID,
		}
	}
	if k.NowMS < k.FencedUntilMS {
		return s, &FencedError{UntilMS: k.FencedUntilMS, RemainingMS: k.FencedUntilMS - k.NowMS, Reason: k.FenceReason}
	}
	token := k.token() + 1
	if token > MaxToken {
		return s, fmt.Errorf("%w: the fencing tokens of key %q are used up at %d", ErrInvalid, r.Key, token-1)
	}
	if s.RequestID != "" {
		s = s.remember(Receipt{RequestID: s.RequestID, Op: Acquire})
	}
	s.Token, s.LeaseID, s.Owner, s.Status = token, r.LeaseID, r.Owner, Active
	s.AcquiredMS, s.ExpiresMS = k.NowMS, k.NowMS+r.TTLMS
	s.RequestID, s.TTLMS, s.TermMS, s.Life = keyname.KeptRequestID(r.RequestID), r.TTLMS, r.TTLMS, k.Life
	s.Note = r.Note
	return s, nil
}

// change renews or releases. The lease's owner is checked before its end.
func (k Known) change(r Request) (State, error) {
	s := k.State
	switch {
	case s.Token == 0:
		return s, fmt.Errorf("%w: nobody holds %q", ErrNotOwned, r.Key)
	case s.Owner != r.Owner:
		return s, fmt.Errorf("%w: the latest lease of %q is another owner's", ErrNotOwned, r.Key)
	case r.LeaseID != "" && s.LeaseID != r.LeaseID:
		return s, fmt.Errorf("%w: the latest lease of %q is another one", ErrNotOwned, r.Key)
	case s.Status == Released:
		return s, fmt.Errorf("%w: %q was released", ErrNotOwned, r.Key)
	case s.Status == Expired:
		return s, fmt.Errorf("%w: %q was held from %s to %s", ErrExpired, r.Key, showTime(s.AcquiredMS), showTime(s.ExpiresMS))
	}
	if r.Op == Renew {
		s.TermMS = cmp.Or(r.TTLMS, s.TermMS)
		s.ExpiresMS, s.Note = k.NowMS+s.TermMS, r.Note
	} else {
		s.Status = Released
	}
	if r.RequestID != "" {
		s = s.remember(s.receiptOf(r))
	}
	return s, nil
}
