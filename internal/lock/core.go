package lock

import (
	"fmt"
	"slices"
)

// State is everything that is remembered of one key. Stores keep it as it is;
// its JSON names are short since a store writes it with every transition.
type State struct {
	Token      int64  `json:"t"`           // of the latest lease; 0: the key is unknown
	LeaseID    string `json:"l"`           // the latest lease, and so on
	Owner      string `json:"o"`           //
	Status     Status `json:"s"`           // as last written: see Expire
	AcquiredMS int64  `json:"a"`           // Unix ms
	ExpiresMS  int64  `json:"e"`           // Unix ms
	RequestID  string `json:"r,omitempty"` // of the acquire, and its term
	TTLMS      int64  `json:"d"`           //

	// Incarnation is that of the store when the lease was granted; empty on a
	// store that does not forget.
	Incarnation string `json:"i,omitempty"`

	Receipts []Receipt `json:"h,omitempty"` // oldest first, at most MaxReceipts
}

// Receipt is a request that was carried out, and enough of its answer to give
// it again.
type Receipt struct {
	RequestID  string `json:"r"`
	Op         Op     `json:"p"`
	Owner      string `json:"o"`
	TTLMS      int64  `json:"d,omitempty"`
	LeaseID    string `json:"l"`
	Token      int64  `json:"t"`
	AcquiredMS int64  `json:"a"`
	ExpiresMS  int64  `json:"e"`
}

// Known is what a store knows of a key before a transition, and of itself.
type Known struct {
	State State // the zero value when there is no record

	// Floor is at least the token of every key whose record was deleted; such a
	// key's current token is taken to be Floor.
	Floor int64

	// Incarnation is empty on a store that does not forget. On one that may, it
	// names the store's present life. A key without a record, or with one from
	// another life, may have had leases that nobody remembers: its current token
	// is taken to be no less than the server's time in microseconds, which no
	// key's token overtakes.
	Incarnation string

	// FencedUntilMS, Unix ms: until then no lease is granted, because one that
	// was forgotten may be alive. FenceReason is for people.
	FencedUntilMS int64
	FenceReason   string
}

// token is the key's current token.
func (k Known) token(nowMS int64) int64 {
	token := k.State.Token
	if token == 0 {
		token = k.Floor
	}
	if k.Incarnation != "" && k.State.Incarnation != k.Incarnation {
		token = max(token, nowMS*1000)
	}
	return token
}

// Expire notes that the lease's term is over, where it is. To do so again
// changes nothing (LS-EXP-001).
func (s State) Expire(nowMS int64) State {
	if s.Status == Active && nowMS >= s.ExpiresMS {
		s.Status = Expired
	}
	return s
}

// Idle reports whether a store may delete the key's record, once it has raised
// its floor to the key's token.
func (s State) Idle(nowMS int64) bool {
	return s.Expire(nowMS).Status != Active && nowMS >= s.ExpiresMS+KeepIdle.Milliseconds()
}

// Lease is the key's latest lease at the time.
func (s State) Lease(tenant, key string, nowMS int64) Lease {
	s = s.Expire(nowMS)
	l := Lease{
		Tenant: tenant, Key: key, LeaseID: s.LeaseID, Owner: s.Owner, Token: s.Token,
		State: s.Status, AcquiredMS: s.AcquiredMS, ExpiresMS: s.ExpiresMS,
	}
	if s.Status == Active {
		l.RemainingMS = s.ExpiresMS - nowMS
	}
	return l
}

// Apply is the transition of LS-SPEC-001, section 3. It returns the state that
// the store must write before it answers, and the answer. With an error, or
// when the answer is Repeated, there is nothing to write.
//
// The request is valid; nowMS is the store's clock, and does not depend on the
// caller's.
func Apply(k Known, r Request, nowMS int64) (State, Lease, error) {
	s := k.State.Expire(nowMS)
	if r.RequestID != "" {
		if again, l, err := s.repeat(r, nowMS); again {
			return k.State, l, err
		}
	}
	var err error
	if r.Op == Acquire {
		s, err = s.acquire(k, r, nowMS)
	} else {
		s, err = s.change(r, nowMS)
	}
	if err != nil {
		return k.State, Lease{}, err
	}
	return s, s.Lease(r.Tenant, r.Key, nowMS), nil
}

func (s State) acquire(k Known, r Request, nowMS int64) (State, error) {
	if s.Status == Active {
		return s, &HeldError{
			Key: r.Key, Owner: s.Owner, Token: s.Token, ExpiresMS: s.ExpiresMS, RemainingMS: s.ExpiresMS - nowMS, RequestID: s.RequestID,
		}
	}
	if nowMS < k.FencedUntilMS {
		return s, &FencedError{UntilMS: k.FencedUntilMS, RemainingMS: k.FencedUntilMS - nowMS, Reason: k.FenceReason}
	}
	token := k.token(nowMS) + 1
	if token > MaxToken {
		return s, fmt.Errorf("%w: key %q is at %d", ErrTokensUsedUp, r.Key, token-1)
	}
	if s.RequestID != "" {
		s = s.remember(s.acquireReceipt())
	}
	s.Token, s.LeaseID, s.Owner, s.Status = token, r.LeaseID, r.Owner, Active
	s.AcquiredMS, s.ExpiresMS = nowMS, nowMS+r.TTLMS
	s.RequestID, s.TTLMS, s.Incarnation = r.RequestID, r.TTLMS, k.Incarnation
	return s, nil
}

// change renews or releases.
func (s State) change(r Request, nowMS int64) (State, error) {
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
		return s, fmt.Errorf("%w: %q was held for %d ms after %d", ErrExpired, r.Key, s.ExpiresMS-s.AcquiredMS, s.AcquiredMS)
	}
	if r.Op == Renew {
		s.ExpiresMS = nowMS + r.TTLMS
	} else {
		s.Status = Released
	}
	if r.RequestID != "" {
		s = s.remember(Receipt{
			RequestID: r.RequestID, Op: r.Op, Owner: r.Owner, TTLMS: r.TTLMS,
			LeaseID: s.LeaseID, Token: s.Token, AcquiredMS: s.AcquiredMS, ExpiresMS: s.ExpiresMS,
		})
	}
	return s, nil
}

// acquireReceipt is the receipt of the request that made the latest lease.
func (s State) acquireReceipt() Receipt {
	return Receipt{
		RequestID: s.RequestID, Op: Acquire, Owner: s.Owner, TTLMS: s.TTLMS,
		LeaseID: s.LeaseID, Token: s.Token, AcquiredMS: s.AcquiredMS, ExpiresMS: s.ExpiresMS,
	}
}

// remember adds a receipt and forgets the oldest beyond MaxReceipts. The slice
// is new: whoever holds the state from before keeps what it had.
func (s State) remember(r Receipt) State {
	s.Receipts = append(slices.Clone(s.Receipts), r)
	s.Receipts = s.Receipts[max(0, len(s.Receipts)-MaxReceipts):]
	return s
}

// repeat answers a request that was carried out before. A lease is shown as it
// is now: its term may have been moved since, and an answer that tells more than
// what is left of it would let two believe that they hold the lock.
func (s State) repeat(r Request, nowMS int64) (again bool, l Lease, err error) {
	done, ok := s.find(r.RequestID)
	if !ok {
		return false, Lease{}, nil
	}
	if done.Op != r.Op || done.Owner != r.Owner || done.TTLMS != r.TTLMS ||
		(r.Op != Acquire && r.LeaseID != "" && r.LeaseID != done.LeaseID) {
		return true, Lease{}, fmt.Errorf("%w: it stands for the %v by %q", ErrRequestReused, done.Op, done.Owner)
	}
	if done.Op == Release {
		return true, Lease{
			Tenant: r.Tenant, Key: r.Key, LeaseID: done.LeaseID, Owner: done.Owner, Token: done.Token,
			State: Released, AcquiredMS: done.AcquiredMS, ExpiresMS: done.ExpiresMS, Repeated: true,
		}, nil
	}
	if s.Token == done.Token && s.Status == Active {
		l = s.Lease(r.Tenant, r.Key, nowMS)
		l.Repeated = true
		return true, l, nil
	}
	switch {
	case done.Op == Acquire:
		return true, Lease{}, fmt.Errorf("%w: the lease that it was granted has ended", ErrRequestReused)
	case s.Token == done.Token && s.Status == Expired:
		return true, Lease{}, fmt.Errorf("%w: since it was renewed by this request", ErrExpired)
	}
	return true, Lease{}, fmt.Errorf("%w any more: the lease that this request renewed has ended", ErrNotOwned)
}

func (s State) find(requestID string) (Receipt, bool) {
	if s.Token != 0 && s.RequestID == requestID {
		return s.acquireReceipt(), true
	}
	i := slices.IndexFunc(s.Receipts, func(r Receipt) bool { return r.RequestID == requestID })
	if i < 0 {
		return Receipt{}, false
	}
	return s.Receipts[i], true
}
