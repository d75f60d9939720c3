package lock

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"

	"github.com/kazahana/kazahana/internal/record/receipt"
)

const (
	// MaxReceipts is how many requests a key's record remembers at least, beside the acquire
	// of its latest lease, if their IDs tell a time or are lease IDs. Of older acquires it
	// keeps Marks: the answer to their repetition says no more. Older renewals and releases
	// move to windows, so many at a time, and leave Marks too: only a request that is not
	// after its mark needs a look at the windows.
	MaxReceipts = 16
	// MaxMarks is how many owners have marks of their own.
	MaxMarks = 64
	// maxAge is how long before the first lease of a key an ID may have been made. A key
	// is deleted after KeepIdle: the rest is what clocks may differ.
	maxAge = KeepIdle / 2
)

// Receipt is a request that was carried out, and enough of its answer to give
// it again.
type Receipt struct {
	RequestID             string
	Op                    Op
	Owner                 string
	TTLMS                 int64
	LeaseID               string
	Token                 int64
	AcquiredMS, ExpiresMS int64 // of a release; an answer to others shows the present
	DoneMS                int64 // Unix ms; 0 of an acquire, unless it is Untimed
	Untimed               bool  // the ID tells no time, and is not that of the acquired lease
}

// Mark stands for the receipts that have left the record. An ID of that time or before may
// have been theirs. It is a mark per owner, because the clocks of two hosts may differ.
// Acquires have a time of their own, because they wait.
type Mark struct {
	Owner           uint32 // a hash; 0: all owners without a mark
	Acquire, Change receipt.Stamp
}

// tellsTime reports whether a new request ID tells when it was made.
func (k Known) tellsTime(r Request) bool {
	_, ok := receipt.MadeAt(r.RequestID, k.NowMS+receipt.MaxAhead.Milliseconds())
	return ok
}

// fresh says why a request without a receipt must not be carried out. A host that makes up
// one ID for the request and its lease repeats it at once or never: its clock is not asked.
func (k Known) fresh(r Request) error {
	if r.endsOnce() || r.Op == Acquire && r.RequestID == r.LeaseID {
		return nil
	}
	if k.full(r) {
		return fmt.Errorf("%w: %q remembers %d requests of the last %v whose IDs tell no time, and takes no more: make request IDs that are UUIDs of version 7",
			ErrInvalid, r.Key, receipt.MaxUntimed, receipt.Keep)
	}
	if made, mark := k.marked(r); made <= mark {
		return &OldRequestError{MadeMS: made.MS(), DroppedMS: mark.MS()}
	}
	return nil
}

// marked returns when the request was made, and the mark that its receipt would have left. One
// whose ID tells no time is after every mark.
func (k Known) marked(r Request) (made, mark receipt.Stamp) {
	made, ok := receipt.MadeAt(r.RequestID, math.MaxInt64)
	if !ok {
		return math.MaxInt64, 0
	}
	m := k.State.markOf(r.Owner)
	if k.State.Token == 0 {
		m = k.firstMark()
	}
	if r.Op == Acquire {
		return made, m.Acquire
	}
	return made, m.Change
}

// endsOnce reports whether the request cannot be carried out twice, whatever is forgotten.
func (r Request) endsOnce() bool { return r.Op == Release && r.LeaseID != "" }

// full reports whether there is no room for the receipt of a request whose ID tells no time.
func (k Known) full(r Request) bool {
	if k.tellsTime(r) || len(k.State.Receipts) < receipt.MaxUntimed {
		return false
	}
	young := 0
	for _, old := range k.State.Receipts {
		if old.Untimed && k.NowMS-old.DoneMS <= receipt.Keep.Milliseconds() {
			young++
		}
	}
	return young >= receipt.MaxUntimed
}

// firstMark stands for the receipts that were deleted with an earlier record of the key.
func (k Known) firstMark() Mark {
	before := receipt.Stamp(k.NowMS-maxAge.Milliseconds()) * receipt.PerMS
	return Mark{Acquire: before, Change: before}
}

// remember adds a receipt and drops others. The slices are new: the state from before
// stays as it is.
func (s State) remember(r Receipt, nowMS int64) State {
	_, timed := receipt.MadeAt(r.RequestID, nowMS+receipt.MaxAhead.Milliseconds())
	r.Untimed = !timed && !(r.Op == Acquire && r.RequestID == r.LeaseID)
	if r.Untimed || r.Op != Acquire {
		r.DoneMS = nowMS
	}
	old := s.Receipts
	overdue := overdue(old)
	if !r.Untimed && timedOf(old) >= MaxReceipts {
		overdue++
	}
	s.Receipts = make([]Receipt, 0, len(old)+1)
	for i := range old {
		one := &old[i]
		switch {
		case one.Untimed && nowMS-one.DoneMS > receipt.Keep.Milliseconds():
			s = s.mark(*one, nowMS) // if it tells a time now, its clock was ahead
			continue
		case !one.Untimed && overdue > 0:
			if overdue--; one.Op == Acquire {
				s = s.mark(*one, math.MaxInt64)
				continue
			}
		}
		s.Receipts = append(s.Receipts, *one)
	}
	s.Receipts = append(s.Receipts, r)
	return s
}

// timedOf is how many of the receipts have an ID that tells a time.
func timedOf(all []Receipt) (n int) {
	for i := range all {
		if !all[i].Untimed {
			n++
		}
	}
	return n
}

// overdue is how many of the receipts whose IDs tell a time are more than MaxReceipts.
func overdue(all []Receipt) int { return max(0, timedOf(all)-MaxReceipts) }

// move moves the receipts that are overdue to their windows, once there are enough of them.
// After remember they are those of renewals and releases.
func (k Known) move(s State) (State, error) {
	n := overdue(s.Receipts)
	if n < MaxReceipts {
		return s, nil
	}
	var leaving, stay []Receipt
	from, until := int64(math.MaxInt64), int64(0)
	for _, r := range s.Receipts {
		switch {
		case r.Untimed || n == 0:
			stay = append(stay, r)
			continue
		case k.NoRoom || k.NowMS-r.DoneMS > receipt.Keep.Milliseconds():
			s = s.mark(r, math.MaxInt64)
		default:
			leaving = append(leaving, r)
			from, until = min(from, r.DoneMS), max(until, r.DoneMS)
		}
		n--
	}
	moved, left, _, err := receipt.Move(leaving, func(r Receipt) receipt.Stamp {
		made, _ := receipt.MadeAt(r.RequestID, math.MaxInt64)
		return made
	}, until-from, k.Windows)
	if err != nil {
		return s, err
	}
	for _, r := range leaving {
		s = s.mark(r, math.MaxInt64)
	}
	s.Moved, s.Receipts = moved, append(left, stay...)
	return s, nil
}

// mark raises the mark of a receipt's owner. Beyond MaxMarks, the one that was raised
// least recently becomes everybody's, which is the first.
func (s State) mark(r Receipt, latestMS int64) State {
	made, ok := receipt.MadeAt(r.RequestID, latestMS)
	if !ok || r.Op == Acquire && r.RequestID == r.LeaseID { // no mark would be asked
		return s
	}
	m := s.markOf(r.Owner)
	m.Owner = ownerHash(r.Owner)
	if r.Op == Acquire {
		m.Acquire = max(m.Acquire, made)
	} else {
		m.Change = max(m.Change, made)
	}
	marks := slices.DeleteFunc(slices.Clone(s.Marks), func(old Mark) bool { return old.Owner == m.Owner })
	for marks = append(marks, m); len(marks) > MaxMarks; marks = marks[1:] {
		next := &marks[1]
		*next = Mark{Acquire: max(next.Acquire, marks[0].Acquire), Change: max(next.Change, marks[0].Change)}
	}
	s.Marks = marks
	return s
}

// markOf is the mark of an owner, or everybody's.
func (s State) markOf(owner string) (mark Mark) {
	hash := ownerHash(owner)
	for _, m := range s.Marks {
		if m.Owner == hash || m.Owner == 0 {
			mark = m
		}
	}
	return mark
}

func ownerHash(owner string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(owner))
	return max(1, h.Sum32())
}

// acquireReceipt is the receipt of the request that made the latest lease.
func (s State) acquireReceipt() Receipt {
	return Receipt{RequestID: s.RequestID, Op: Acquire, Owner: s.Owner, TTLMS: s.TTLMS, LeaseID: s.LeaseID, Token: s.Token}
}

// repeat answers a request that was carried out before, with the lease as it is now:
// its term may have been moved since, and with the old one two callers could believe
// that they hold the lock.
func (k Known) repeat(r Request) (again bool, l Lease, err error) {
	s := k.State
	done, ok := s.find(r.RequestID)
	if !ok {
		if done, ok, err = k.findMoved(r); err != nil || !ok {
			return err != nil, Lease{}, err
		}
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
		l = s.Lease(r.Tenant, r.Key, k.LeftMS)
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

// findMoved looks for a receipt in the windows, where one may be.
func (k Known) findMoved(r Request) (found Receipt, ok bool, err error) {
	made, mark := k.marked(r)
	if r.Op == Acquire || made > mark || k.State.Token == 0 {
		return Receipt{}, false, nil
	}
	return receipt.Find(k.Windows, made, func(old Receipt) bool { return old.RequestID == r.RequestID })
}
