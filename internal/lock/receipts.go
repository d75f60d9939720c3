package lock

import (
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/kazahana/kazahana/internal/keyname"
)

// MaxReceipts is how many answers to acquires and renewals a key remembers, beside the acquire
// of its latest lease, and how many answers to releases. An older request that comes again is
// judged like a new one.
const MaxReceipts = 16

// Receipt is a request that was carried out, and enough of its answer to give it again. An
// acquire has no more than its request ID: it is remembered here once its lease is not the
// latest any more.
type Receipt struct {
	RequestID string // as it is kept
	Op        Op
	Owner     uint64 // a digest, of a renewal or a release like Lease
	Lease     string // the bytes of its ID
	TTLMS     int64  // of a renewal
	// What follows is of a release. The answer to others shows the present.
	Token                 int64
	AcquiredMS, ExpiresMS int64
}

// ownerDigest stands for the owner of a receipt.
func ownerDigest(owner string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(owner))
	return h.Sum64()
}

// remember adds the receipt of a request to the latest ones. The slices are new: the state from
// before stays as it is.
func (s State) remember(r Receipt) State {
	all := &s.Answers
	if r.Op == Release {
		all = &s.Releases
	}
	latest := (*all)[max(0, len(*all)-MaxReceipts+1):]
	*all = append(slices.Clip(latest), r)
	return s
}

// receiptOf is the receipt of a renewal or a release that leaves the state behind.
func (s State) receiptOf(r Request) Receipt {
	done := Receipt{RequestID: keyname.KeptRequestID(r.RequestID), Op: r.Op, Owner: ownerDigest(s.Owner), Lease: leaseBytes(s.LeaseID), TTLMS: r.TTLMS}
	if r.Op == Release {
		done.Token, done.AcquiredMS, done.ExpiresMS = s.Token, s.AcquiredMS, s.ExpiresMS
	}
	return done
}

// repeat answers a request that was carried out before, with the lease as it is now:
// its term may have been moved since, and with the old one two callers could believe
// that they hold the lock.
func (k Known) repeat(r Request) (again bool, l Lease, err error) {
	s, id := k.State, keyname.KeptRequestID(r.RequestID)
	if id == s.RequestID {
		l, err = k.repeatAcquire(r)
		return true, l, err
	}
	is := func(done Receipt) bool { return done.RequestID == id }
	if i := slices.IndexFunc(s.Answers, is); i >= 0 {
		l, err = k.repeatRenewal(s.Answers[i], r)
		return true, l, err
	}
	if i := slices.IndexFunc(s.Releases, is); i >= 0 {
		l, err = s.Releases[i].repeatRelease(r)
		return true, l, err
	}
	return false, Lease{}, nil
}

// repeatAcquire is repeat of the request that the latest lease was granted to.
func (k Known) repeatAcquire(r Request) (Lease, error) {
	s := k.State
	switch {
	case r.Op != Acquire || r.Owner != s.Owner || r.TTLMS != s.TTLMS:
		return Lease{}, fmt.Errorf("%w: it stands for an acquire", ErrRequestReused)
	case s.Status != Active:
		return Lease{}, fmt.Errorf("%w: the lease that it was granted has ended", ErrRequestReused)
	}
	return k.present(r), nil
}

// repeatRenewal is repeat of a renewal, or of the acquire of an earlier lease.
func (k Known) repeatRenewal(done Receipt, r Request) (Lease, error) {
	s := k.State
	switch {
	case done.Op == Acquire && r.Op == Acquire:
		return Lease{}, fmt.Errorf("%w: the lease that it was granted has ended", ErrRequestReused)
	case done.Op == Acquire || !done.isOf(r) || r.TTLMS != done.TTLMS:
		return Lease{}, fmt.Errorf("%w: it stands for another %v", ErrRequestReused, done.Op)
	case s.LeaseID != leaseID(done.Lease) || s.Status == Released:
		return Lease{}, fmt.Errorf("%w any more: the lease that this request renewed has ended", ErrNotOwned)
	case s.Status == Expired:
		return Lease{}, fmt.Errorf("%w: since it was renewed by this request", ErrExpired)
	}
	return k.present(r), nil
}

// repeatRelease is repeat of a release: its answer stays the same.
func (done Receipt) repeatRelease(r Request) (Lease, error) {
	if !done.isOf(r) {
		return Lease{}, fmt.Errorf("%w: it stands for a release", ErrRequestReused)
	}
	return Lease{
		Tenant: r.Tenant, Key: r.Key, LeaseID: leaseID(done.Lease), Owner: r.Owner, Token: done.Token,
		State: Released, AcquiredMS: done.AcquiredMS, ExpiresMS: done.ExpiresMS, Repeated: true,
	}, nil
}

// isOf reports whether the request has the operation, the owner and the lease of a renewal or a
// release.
func (done Receipt) isOf(r Request) bool {
	return done.Op == r.Op && done.Owner == ownerDigest(r.Owner) && (r.LeaseID == "" || r.LeaseID == leaseID(done.Lease))
}

// present returns the answer to a request while its lease lives on.
func (k Known) present(r Request) Lease {
	l := k.State.Lease(r.Tenant, r.Key, k.LeftMS)
	l.Repeated = true
	return l
}
