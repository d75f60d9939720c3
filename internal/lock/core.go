package lock

import (
	"cmp"
	"fmt"
)

// State is everything that a store remembers of one key.
type State struct {
	Token      int64  // of the latest lease; 0: the key is unknown
	LeaseID    string // of the latest lease, like all up to Life
	Owner      string
	Status     Status
	AcquiredMS int64  // Unix ms
	ExpiresMS  int64  // Unix ms
	RequestID  string // of the acquire, and its term
	TTLMS      int64
	TermMS     int64  // of the latest acquire or renewal
	Note       string // likewise
	Life       uint64 // of the store, when the lease was granted

	Marks    []Mark    // where receipts were dropped; at most MaxMarks
	Receipts []Receipt // oldest first

	// Moved are the windows that are to be written with the state, as they are then.
	Moved map[string][]Receipt
}

// Known is what a store knows of a key, and of itself, at one moment.
type Known struct {
	// State is the zero value when there is no record. A lease that has ended by the
	// store's judgement is EXPIRED.
	State  State
	LeftMS int64 // what is left of an ACTIVE lease, by the store's judgement
	NowMS  int64 // Unix ms

	// Life is the store's present one. A key without a record, or with one from another
	// life, may have had leases that were forgotten: its next token is above Floor too.
	Life  uint64
	Floor int64

	// FencedUntilMS, Unix ms: no lease is granted before, because a forgotten one
	// may be alive. FenceReason is for people.
	FencedUntilMS int64
	FenceReason   string

	// Windows are those that the store was asked for. One that is missing there has no
	// receipts.
	Windows map[string][]Receipt
	// NoRoom: the store has no room for windows, so receipts are dropped.
	NoRoom bool
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
// an error, or when the answer is Repeated, there is nothing to write. A *receipt.UnseenError
// names the windows that it depends on.
//
// The request is valid.
func Apply(k Known, r Request) (State, Lease, error) {
	if r.RequestID != "" {
		again, l, err := k.repeat(r)
		if !again {
			err = k.fresh(r)
		}
		if again || err != nil {
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
		return s, fmt.Errorf("%w: key %q is at %d", ErrTokensUsedUp, r.Key, token-1)
	}
	if s.Token == 0 {
		s.Marks = []Mark{k.firstMark()}
	}
	if s.RequestID != "" {
		s = s.remember(s.acquireReceipt(), k.NowMS)
	}
	s.Token, s.LeaseID, s.Owner, s.Status = token, r.LeaseID, r.Owner, Active
	s.AcquiredMS, s.ExpiresMS = k.NowMS, k.NowMS+r.TTLMS
	s.RequestID, s.TTLMS, s.TermMS, s.Life = r.RequestID, r.TTLMS, r.TTLMS, k.Life
	s.Note = r.Note
	return s, nil
}

// change renews or releases.
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
	if r.RequestID != "" && !k.full(r) {
		done := Receipt{RequestID: r.RequestID, Op: r.Op, Owner: r.Owner, TTLMS: r.TTLMS, LeaseID: s.LeaseID, Token: s.Token}
		if r.Op == Release {
			done.AcquiredMS, done.ExpiresMS = s.AcquiredMS, s.ExpiresMS
		}
		return k.move(s.remember(done, k.NowMS))
	}
	return s, nil
}
