package lock

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// MaxReceipts is how many requests a key remembers beside the acquire of its latest
	// lease, if their IDs tell a time or are lease IDs. Of older ones it keeps Marks.
	MaxReceipts = 16
	// MaxMarks is how many owners have marks of their own.
	MaxMarks = 64
	// KeepUntimed is how long a key remembers a request whose ID tells no time.
	KeepUntimed = 10 * time.Minute
	// MaxUntimed is how many of those it remembers. Further ones are refused.
	MaxUntimed = 256
	// maxAge is how long before the first lease of a key an ID may have been made. A key
	// is deleted after KeepIdle: the rest is what clocks may differ.
	maxAge = KeepIdle / 2
	// maxAhead is how far the clock of an ID may be ahead of the store's; an ID from further
	// ahead tells no time. A clock that is set back has its requests refused for so long.
	maxAhead = time.Minute
	// firstMS is the start of 2020 in Unix ms: no clock of a host shows an earlier time.
	firstMS = 1_577_836_800_000
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
	DoneMS                int64 // Unix ms; 0 where the ID tells a time or is the lease ID
}

// Mark stands for the receipts that were dropped. An ID of that time or before may have
// been theirs. It is a mark per owner, because the clocks of two hosts may differ. Acquires
// have a time of their own, because they wait.
type Mark struct {
	Owner           uint32 // a hash; 0: all owners without a mark
	Acquire, Change stamp
}

// stamp is a time that a request ID tells, in 4096ths of a Unix ms: the first 60 bits of a
// UUID of version 7, without the version. The last 12 may be random.
type stamp int64

const stampsPerMS = 1 << 12

func (s stamp) ms() int64 { return int64(s) / stampsPerMS }

// madeAt is the time that a request ID tells, if it is a UUID of version 7, with or without
// hyphens, behind what a lease server puts before it. A time after the latest is none, and so
// is one before firstMS: random digits look like UUIDs of version 7 too.
func madeAt(id string, latestMS int64) (made stamp, ok bool) {
	id = id[strings.LastIndexByte(id, '.')+1:]
	if isUUID(id) {
		id = strings.ReplaceAll(id, "-", "")
	}
	if len(id) != leaseDigits || id[12] != '7' || !strings.ContainsRune("89abAB", rune(id[16])) {
		return 0, false
	}
	n, err := strconv.ParseUint(id[:12]+id[13:16], 16, 60)
	made = stamp(n)
	return made, err == nil && made.ms() >= firstMS && made.ms() <= latestMS
}

// tellsTime reports whether a new request ID tells when it was made.
func (k Known) tellsTime(r Request) bool {
	_, ok := madeAt(r.RequestID, k.NowMS+maxAhead.Milliseconds())
	return ok
}

// fresh says why a request without a receipt must not be carried out. A host that makes up
// one ID for the request and its lease repeats it at once or never: its clock is not asked.
func (k Known) fresh(r Request) error {
	if r.endsOnce() || r.RequestID == r.LeaseID {
		return nil
	}
	if k.full(r) {
		return fmt.Errorf("%w: %q remembers %d requests of the last %v whose IDs tell no time, and takes no more: make request IDs that are UUIDs of version 7",
			ErrInvalid, r.Key, MaxUntimed, KeepUntimed)
	}
	mark := k.State.markOf(r.Owner)
	if k.State.Token == 0 {
		mark = k.firstMark()
	}
	dropped := mark.Change
	if r.Op == Acquire {
		dropped = mark.Acquire
	}
	if made, ok := madeAt(r.RequestID, math.MaxInt64); ok && made <= dropped {
		return &OldRequestError{MadeMS: made.ms(), DroppedMS: dropped.ms()}
	}
	return nil
}

// endsOnce reports whether the request cannot be carried out twice, whatever is forgotten.
func (r Request) endsOnce() bool { return r.Op == Release && r.LeaseID != "" }

// full reports whether there is no room for the receipt of a request whose ID tells no time.
func (k Known) full(r Request) bool {
	if k.tellsTime(r) || len(k.State.Receipts) < MaxUntimed {
		return false
	}
	young := 0
	for _, old := range k.State.Receipts {
		if old.DoneMS != 0 && k.NowMS-old.DoneMS <= KeepUntimed.Milliseconds() {
			young++
		}
	}
	return young >= MaxUntimed
}

// firstMark stands for the receipts that were deleted with an earlier record of the key.
func (k Known) firstMark() Mark {
	before := stamp(k.NowMS-maxAge.Milliseconds()) * stampsPerMS
	return Mark{Acquire: before, Change: before}
}

// remember adds a receipt and drops others. The slices are new: the state from before
// stays as it is.
func (s State) remember(r Receipt, nowMS int64) State {
	if _, ok := madeAt(r.RequestID, nowMS+maxAhead.Milliseconds()); !ok && r.RequestID != r.LeaseID {
		r.DoneMS = nowMS
	}
	timed := 0
	all := append(slices.Clip(s.Receipts), r)
	for _, old := range all {
		if old.DoneMS == 0 {
			timed++
		}
	}
	s.Receipts = make([]Receipt, 0, len(all))
	for _, old := range all {
		switch {
		case old.DoneMS == 0 && timed > MaxReceipts:
			timed--
			s = s.mark(old, math.MaxInt64)
		case old.DoneMS != 0 && nowMS-old.DoneMS > KeepUntimed.Milliseconds():
			s = s.mark(old, nowMS) // if it tells a time now, its clock was ahead
		default:
			s.Receipts = append(s.Receipts, old)
		}
	}
	return s
}

// mark raises the mark of a receipt's owner. Beyond MaxMarks, the one that was raised
// least recently becomes everybody's, which is the first.
func (s State) mark(r Receipt, latestMS int64) State {
	made, ok := madeAt(r.RequestID, latestMS)
	if !ok || r.RequestID == r.LeaseID { // no mark would be asked
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
