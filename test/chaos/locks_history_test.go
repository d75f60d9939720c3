package chaos

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/lock/locktest"
)

// checkHistories has the whole history of some keys judged: of those that somebody
// had while he stood still, and of the least used ones, which can be, where
// everybody's lease is known.
func (r lockRecord) checkHistories(res *lockResult, locks map[string][]*lockAsked) {
	last := map[string]int{} // 0: somebody stood still
	for key := range locks {
		if !slices.ContainsFunc(r.freezes, func(f lockFreeze) bool { return f.key == key }) {
			last[key] = 1
		}
	}
	keys := slices.SortedFunc(maps.Keys(locks), func(a, b string) int {
		return cmp.Or(cmp.Compare(last[a], last[b]), cmp.Compare(len(locks[a]), len(locks[b])), strings.Compare(a, b))
	})
	owners := map[int]string{} // by process
	for _, a := range r.attempts {
		if a.Op == lock.Acquire.String() && a.Outcome == lockOK {
			owners[a.Process] = a.Got.Owner
		}
	}
	for _, key := range keys {
		if res.keys == r.sample {
			return
		}
		calls, ok := historyOf(locks[key], owners)
		if !ok {
			continue
		}
		// What times mean is judged above. The clock of the store is read for a Get
		// beside that for a change, so that here they count for less.
		h := &locktest.History{Allowed: locktest.Allowed{Jumps: r.jumps, NoClock: true}}
		for _, c := range calls {
			h.Add(c.process, c.request, c.called, c.returned, c.lease, c.err)
		}
		res.keys++
		res.frozenKeys += 1 - last[key]
		res.judged += len(calls)
		if err := h.Check(); err != nil {
			res.violates(locksHistory, "%s: %v", key, err)
		}
	}
}

// historyCall is a request as a history has it.
type historyCall struct {
	process          int
	request          lock.Request
	called, returned int64
	lease            lock.Lease
	err              error
}

var errNoAnswer = errors.New("no answer")

// historyOf makes one call of all attempts up to the first success: whichever
// did it, it was in between. Likewise of those that nobody knows the outcome of. It
// is not ok where a lease was shown whose holder never knew of it, or a request may
// have been forgotten before it was made again.
func historyOf(all []*lockAsked, owners map[int]string) (calls []historyCall, ok bool) {
	granted := map[string]bool{}
	for _, a := range all {
		for _, t := range a.ok {
			if t.Op == lock.Acquire.String() {
				granted[t.Got.LeaseID] = true
			}
		}
	}
	for _, a := range all {
		done, open := false, false
		for _, t := range a.attempts {
			c := historyCall{process: t.Process, called: t.Sent, returned: t.Answered, lease: t.Got, err: lockErrors[t.Outcome], request: lock.Request{
				Op: lockOps[t.Op], Tenant: "default", Key: t.Key, Owner: owners[t.Process], RequestID: t.Request, LeaseID: t.Lease, TTLMS: t.TTLMS,
			}}
			acquired := t.Outcome == lockOK && t.Op == lock.Acquire.String()
			switch {
			case a.late, t.Outcome == lockOK && !granted[t.Got.LeaseID]:
				return nil, false
			case t.unsure() && (open || len(a.ok) > 0):
				continue // part of the first such, or of the success
			case t.unsure():
				c.err, open = errNoAnswer, true
			case t.Outcome == lockHeld:
				c.lease, c.err = lock.Lease{}, heldIn(t)
			case acquired && done:
				continue // compared elsewhere: what is left of the lease is told in another way
			case acquired:
				c.request.LeaseID = t.Got.LeaseID
			}
			if c.lease.Repeated = done; t.Outcome == lockOK && !done {
				c.called, done = a.first().Sent, true
			}
			calls = append(calls, c)
		}
	}
	return calls, true
}

// heldIn is the refusal as it is judged in a history: whose lease it is. Who is told
// it by a line is told of its end as that was when the line asked the store, and a
// renewal may have moved it since.
func heldIn(t lockAttempt) error {
	return &lock.HeldError{Key: t.Key, Owner: t.Got.Owner, Token: t.Got.Token}
}

// checkHeld: that somebody has the lock is told only if he can have had it after
// the question.
func (r lockRecord) checkHeld(res *lockResult, key string, all []*lockAsked, grants map[string]*lockGrant) {
	over := map[int64]int64{} // by the token: when the lease was over for certain
	for _, g := range grants {
		over[g.Token] = math.MaxInt64
		if !r.late {
			over[g.Token] = g.got + g.by.first().TTLMS*int64(time.Millisecond)
		}
	}
	for _, a := range all {
		g := grants[a.first().Lease]
		if g == nil || over[g.Token] == math.MaxInt64 && a.first().Op != lock.Release.String() {
			continue
		}
		switch {
		case len(a.ok) > 0 && a.first().Op == lock.Release.String():
			over[g.Token] = min(over[g.Token], a.ok[0].Answered)
		case len(a.ok) > 0 && a.first().Op == lock.Renew.String():
			over[g.Token] = max(over[g.Token], a.ok[0].Answered+a.first().TTLMS*int64(time.Millisecond))
		case a.unsure() && a.first().Op == lock.Renew.String():
			over[g.Token] = math.MaxInt64
		}
	}
	for _, a := range all {
		for _, t := range a.attempts {
			at, known := over[t.Got.Token]
			if t.Outcome != lockHeld || !known {
				continue
			}
			if res.held++; t.Sent > at {
				res.violates(locksNobody, "%s: process %d was told that token %d is held, %v after that was over", key, t.Process, t.Got.Token,
					time.Duration(t.Sent-at).Round(time.Millisecond))
			}
		}
	}
}

var lockOps = map[string]lock.Op{"acquire": lock.Acquire, "renew": lock.Renew, "release": lock.Release}

var lockErrors = map[string]error{
	lockNotOwned: lock.ErrNotOwned, lockExpired: lock.ErrExpired, lockReused: lock.ErrRequestReused,
	lockNotFound: lock.ErrNotFound, lockUnknown: errNoAnswer, lockRefused: lock.ErrInvalid,
}
