package chaos

import (
	"math"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

// checkHeld: an answer names a holder only if that one can have had the lock after the question.
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
