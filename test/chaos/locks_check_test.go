package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/sequence"
)

// lockRecord is what all processes asked and were answered in a scenario.
type lockRecord struct {
	attempts    []lockAttempt
	freezes     []lockFreeze
	from, until int64         // requests were made in between
	gap         time.Duration // no process may be without an answer for longer
	jumps       bool          // the store begins to count tokens by the time
	late        bool          // the store may be late to see that a lease has ended
}

// What the checker finds.
const (
	locksTwoHolders = "a lock had two holders at once"
	locksTokens     = "a token did not increase"
	locksRepeated   = "a token came twice"
	locksApplied    = "a request was applied twice"
	locksLost       = "a lock was lost before its end"
	locksLate       = "a lock obeyed who had lost it"
	locksWritten    = "an old token overwrote a newer one"
	locksNobody     = "a lock was refused because of a lease that was over"
	locksValueTwice = "a value came twice"
	locksMissing    = "a value is missing"
	locksDisorder   = "a value came after a greater one"
	locksSilent     = "a process was without an answer for too long"
	locksStep       = "no step of docs/model/Locks.tla"
	locksFault      = "something else went wrong"
)

// lockResult is what the checker found.
type lockResult struct {
	findings
	done                        map[string]int // operations that succeeded, by their names
	asked, unknown, again, left int            // attempts; with unknown outcome; answered twice; grants with a lease that ran out
	values                      int            // that were taken
	stale, refusedLate          int            // writes refused; refusals to processes that had stood still
	held                        int            // answers that another one has the lock, with a known lease
	steps                       int            // that were followed through docs/model/Locks.tla
	longestGap                  time.Duration
	longestOf                   int
}

// lockAsked is a request with all its attempts, in the order in which they were
// sent.
type lockAsked struct {
	attempts []lockAttempt
	ok       []lockAttempt // the attempts that succeeded
	// forgotten is when the key may first have forgotten the request: an attempt that was
	// answered later may have been judged like a new request. late: there is such an attempt.
	forgotten int64
	late      bool
}

// add adds an attempt.
func (a *lockAsked) add(t lockAttempt) {
	if a.attempts = append(a.attempts, t); t.Outcome == lockOK {
		a.ok = append(a.ok, t)
	}
}

func (a *lockAsked) first() lockAttempt { return a.attempts[0] }

// changes reports whether the request may have been carried out, and may have changed anything.
func (a *lockAsked) changes() bool { return a.first().Op != "get" && (len(a.ok) > 0 || a.unsure()) }

// times is how often the request may have been carried out at most.
func (a *lockAsked) times() (n int) {
	for _, t := range a.attempts {
		perhaps := t.unsure() || t.Outcome == lockOK && t.Sent == a.ok[0].Sent // later answers are about that lease
		if perhaps && (n == 0 || t.Answered > a.forgotten) {
			n++
		}
	}
	return n
}

// unsure reports whether the outcome of an attempt is unknown.
func (a *lockAsked) unsure() bool { return slices.ContainsFunc(a.attempts, lockAttempt.unsure) }

// unsure is also a lock that was granted perhaps, and too late to be used.
func (t lockAttempt) unsure() bool {
	return t.Outcome == lockUnknown || t.Outcome == lockExpired && t.Op == lock.Acquire.String()
}

func (a *lockAsked) end() (last int64) {
	for _, t := range a.attempts {
		last = max(last, t.Answered)
	}
	return last
}

// lockGrant is a lease as those saw it who had to do with it.
type lockGrant struct {
	lock.Lease
	by        *lockAsked
	got       int64 // when its holder knew
	endMS     int64 // by the store's clock, as far as is known
	heldUntil int64 // by everybody's clock, at least
	released  bool  // or may have been
}

// check merges everything and says what must not be.
func (r lockRecord) check() lockResult {
	res := lockResult{findings: findings{count: map[string]int{}}, done: map[string]int{}}
	r.checkAnswers(&res)
	locks, sequences, writes := r.byKey()
	for _, key := range slices.Sorted(maps.Keys(locks)) {
		grants := checkLock(&res, key, locks[key])
		r.checkRenewals(&res, key, locks[key], grants)
		checkWrites(&res, key, writes[key], grants)
		r.checkHeld(&res, key, locks[key], grants)
		r.checkWoken(&res, key, locks[key], writes[key], grants)
		r.checkSteps(&res, key, locks[key])
	}
	for _, key := range slices.Sorted(maps.Keys(sequences)) {
		checkSequence(&res, key, sequences[key])
	}
	res.summarise()
	return res
}

// checkAnswers counts, and looks for refusals and silences that should not be.
func (r lockRecord) checkAnswers(res *lockResult) {
	byProcess := map[int][]int64{}
	for _, a := range r.attempts {
		if a.Op == "write" && a.Outcome != lockRefused {
			continue // no request, and not answered by whom is judged
		}
		res.asked++
		switch a.Outcome {
		case lockOK:
			res.done[a.Op]++
		case lockUnknown:
			res.unknown++
			continue
		case lockRefused:
			res.violates(locksFault, "process %d: %s of %s: %s", a.Process, a.Op, a.Key, a.Error)
		}
		byProcess[a.Process] = append(byProcess[a.Process], a.Answered)
	}
	for process, times := range byProcess {
		slices.Sort(times)
		last := r.from
		for _, at := range append(times, r.until) {
			gap := r.awake(process, last, at)
			if gap > res.longestGap {
				res.longestGap, res.longestOf = gap, process
			}
			if gap > r.gap {
				res.violates(locksSilent, "process %d for %v", process, gap.Round(time.Millisecond))
			}
			last = at
		}
	}
}

// byKey sorts the requests.
func (r lockRecord) byKey() (locks, sequences map[string][]*lockAsked, writes map[string][]lockAttempt) {
	locks, sequences, writes = map[string][]*lockAsked{}, map[string][]*lockAsked{}, map[string][]lockAttempt{}
	known := map[string]*lockAsked{}
	attempts := slices.Clone(r.attempts)
	slices.SortStableFunc(attempts, func(a, b lockAttempt) int { return cmp.Compare(a.Sent, b.Sent) })
	for _, t := range attempts {
		to := locks
		switch t.Op {
		case "next":
			to = sequences
		case "write":
			writes[t.Key] = append(writes[t.Key], t)
			continue
		}
		asked := known[t.Request]
		if asked == nil || t.Request == "" {
			asked = &lockAsked{}
			known[t.Request] = asked
			to[t.Key] = append(to[t.Key], asked)
		}
		asked.add(t)
	}
	for key, asked := range locks {
		locks[key] = apart(asked)
	}
	for _, asked := range sequences {
		for _, a := range asked {
			a.forget(asked, sequence.MaxReceipts)
		}
	}
	return locks, sequences, writes
}

// forget finds out when the key may have forgotten the request: when as many others as it
// remembers may have been carried out since. A lock remembers releases apart from the others.
func (a *lockAsked) forget(all []*lockAsked, memory int) {
	if a.forgotten = math.MaxInt64; len(a.attempts) == 1 {
		return
	}
	var others []int64
	for _, b := range all {
		alike := (a.first().Op == lock.Release.String()) == (b.first().Op == lock.Release.String())
		if b != a && alike && b.changes() && b.end() > a.first().Sent {
			others = append(others, b.first().Sent)
		}
	}
	if len(others) >= memory {
		slices.Sort(others)
		a.forgotten = others[memory-1]
	}
	a.late = a.late || slices.ContainsFunc(a.attempts[1:], func(t lockAttempt) bool { return t.Answered > a.forgotten })
}

// apart makes a request of its own of each repetition that the lock has judged like a new
// request. It may do so once it has forgotten the first.
func apart(all []*lockAsked) []*lockAsked {
	for i := 0; i < len(all); i++ {
		a := all[i]
		a.forget(all, lock.MaxReceipts)
		if later := a.split(); later != nil {
			all = append(all, later)
		}
	}
	slices.SortStableFunc(all, func(a, b *lockAsked) int { return cmp.Compare(a.first().Sent, b.first().Sent) })
	return all
}

// split takes from the request the attempts from the first one on with an answer that shows that
// it was carried out anew; nil for none.
func (a *lockAsked) split() *lockAsked {
	from := 0 // after the latest answer: an attempt without one may have been carried out anew
	for i, t := range a.attempts {
		if t.Outcome != lockOK {
			continue
		}
		if t.Answered <= a.forgotten || !anew(a.ok[0].Got, t.Got, t.Op) {
			from = i + 1
			continue
		}
		before, later := &lockAsked{forgotten: a.forgotten, late: true}, &lockAsked{late: true}
		for j, t := range a.attempts {
			if j < from {
				before.add(t)
				continue
			}
			t.Request += ", anew"
			later.add(t)
		}
		*a = *before
		return later
	}
	return nil
}

// anew reports whether a later answer to a request is of another lease, or another renewal.
func anew(before, after lock.Lease, op string) bool {
	return before.LeaseID != after.LeaseID || op == lock.Renew.String() && before.ExpiresMS != after.ExpiresMS
}

// checkLock judges one key, and returns its leases by their IDs.
func checkLock(res *lockResult, key string, all []*lockAsked) (grants map[string]*lockGrant) {
	grants = map[string]*lockGrant{}
	asks := 0 // that may have been granted a lease
	for _, a := range all {
		if a.first().Op != lock.Acquire.String() {
			continue
		}
		asks += a.times()
		if len(a.ok) == 0 {
			continue
		}
		got := a.ok[0]
		grants[got.Got.LeaseID] = &lockGrant{
			Lease: got.Got, by: a, got: got.Answered, endMS: got.Got.ExpiresMS, heldUntil: a.first().Sent + got.TTLMS*int64(time.Millisecond),
		}
		checkAgain(res, key, a)
	}
	for _, a := range all {
		switch {
		case a.first().Op == lock.Renew.String() || a.first().Op == lock.Release.String():
			checkChange(res, key, a, grants[a.first().Lease])
		case a.first().Op == lock.Acquire.String():
			for _, t := range a.attempts {
				// Later it may be its own lease that has ended.
				if t.Outcome == lockReused && !a.unsure() && t.Answered < a.first().Sent+t.TTLMS*int64(time.Millisecond) {
					res.violates(locksFault, "%s: the new request %s was refused as used before", key, t.Request)
				}
			}
		}
	}
	byToken := slices.SortedFunc(maps.Values(grants), func(a, b *lockGrant) int { return cmp.Compare(a.Token, b.Token) })
	checkTokens(res, key, byToken, asks)
	checkHolders(res, key, byToken)
	return grants
}

// checkAgain compares the answers that one request got.
func checkAgain(res *lockResult, key string, a *lockAsked) {
	for _, t := range a.ok[1:] {
		res.again++
		one, other := a.ok[0].Got, t.Got
		if one.LeaseID != other.LeaseID || one.Token != other.Token || one.AcquiredMS != other.AcquiredMS || one.ExpiresMS != other.ExpiresMS {
			res.violates(locksApplied, "%s: %s of request %s gave %s, and then %s", key, t.Op, t.Request, leaseText(one), leaseText(other))
		}
	}
}

func leaseText(l lock.Lease) string {
	return fmt.Sprintf("token %d from %d to %d", l.Token, l.AcquiredMS, l.ExpiresMS)
}

// checkChange follows a renewal or a release of a lease.
func checkChange(res *lockResult, key string, a *lockAsked, g *lockGrant) {
	if g == nil {
		res.violates(locksFault, "%s: %s of the lease %s, which nobody was granted", key, a.first().Op, a.first().Lease)
		return
	}
	for _, t := range a.attempts {
		// A release that was carried out, and forgotten since, is refused rightly.
		refused := t.Outcome == lockNotOwned || t.Outcome == lockExpired || t.Outcome == lockReused
		if refused && t.Answered < g.heldUntil && t.Answered <= a.forgotten {
			res.violates(locksLost, "%s: %s with token %d: %s, at least %v before its end", key, t.Op, g.Token, t.Error,
				time.Duration(g.heldUntil-t.Answered).Round(time.Millisecond))
		}
	}
	if a.first().Op == lock.Release.String() {
		g.heldUntil = min(g.heldUntil, a.first().Sent)
		g.released = g.released || len(a.ok) > 0 || a.unsure()
	}
	if len(a.ok) == 0 {
		return
	}
	checkAgain(res, key, a)
	if got := a.ok[0].Got; got.Token != g.Token || got.LeaseID != g.LeaseID {
		res.violates(locksTokens, "%s: a %s of token %d is answered with token %d", key, a.first().Op, g.Token, got.Token)
	}
	if a.first().Op == lock.Renew.String() {
		g.endMS = max(g.endMS, a.ok[0].Got.ExpiresMS)
		g.heldUntil = max(g.heldUntil, a.first().Sent+a.first().TTLMS*int64(time.Millisecond))
	}
}

// checkTokens: each lease has one of its own, they grow with time, and there are
// no more than requests.
func checkTokens(res *lockResult, key string, byToken []*lockGrant, asks int) {
	for i := 1; i < len(byToken); i++ {
		a, b := byToken[i-1], byToken[i]
		switch {
		case a.Token == b.Token:
			res.violates(locksRepeated, "%s: %d for %s and %s", key, a.Token, a.by.first().Request, b.by.first().Request)
		case b.AcquiredMS < a.AcquiredMS:
			res.violates(locksTokens, "%s: %s, and %s", key, leaseText(a.Lease), leaseText(b.Lease))
		}
	}
	for i, soonest := len(byToken)-1, (*lockGrant)(nil); i >= 0; i-- {
		a := byToken[i]
		if soonest != nil && soonest.got < a.by.first().Sent && soonest.Token > a.Token {
			res.violates(locksTokens, "%s: %d was granted before %d was asked for", key, soonest.Token, a.Token)
		}
		if soonest == nil || a.got < soonest.got {
			soonest = a
		}
	}
	if n := len(byToken); n > 0 {
		if used := byToken[n-1].Token - byToken[0].Token + 1; used > int64(asks) {
			res.violates(locksApplied, "%s: %d requests for the lock can have been granted, and used %d tokens", key, asks, used)
		}
	}
}

// checkHolders: by the store's clock, and by the processes', which say less and know better.
func checkHolders(res *lockResult, key string, byToken []*lockGrant) {
	for i, a := range byToken {
		if !a.released {
			res.left++
		}
		if i+1 == len(byToken) {
			break
		}
		if b := byToken[i+1]; !a.released && b.AcquiredMS < a.endMS {
			res.violates(locksTwoHolders, "%s at %d by the store's clock: %s, renewed until %d, and %s", key, b.AcquiredMS, leaseText(a.Lease), a.endMS, leaseText(b.Lease))
		}
	}
	byTime := slices.SortedFunc(slices.Values(byToken), func(a, b *lockGrant) int { return cmp.Compare(a.got, b.got) })
	for i, last := 0, (*lockGrant)(nil); i < len(byTime); i++ {
		if g := byTime[i]; last == nil || g.heldUntil > last.heldUntil {
			if last != nil && g.got < last.heldUntil {
				res.violates(locksTwoHolders, "%s: tokens %d and %d, for %v", key, last.Token, g.Token, time.Duration(last.heldUntil-g.got))
			}
			last = g
		} else if g.got < min(last.heldUntil, g.heldUntil) {
			res.violates(locksTwoHolders, "%s: tokens %d and %d, for %v", key, last.Token, g.Token, time.Duration(g.heldUntil-g.got))
		}
	}
}

// checkSequence judges one key.
func checkSequence(res *lockResult, key string, all []*lockAsked) {
	taken := map[int64]string{}
	greatest, missing, block := int64(0), 0, false
	var answered []lockAttempt
	for _, a := range all {
		block = block || a.first().Block
		if len(a.ok) == 0 || a.late { // its grant may be lost
			missing += a.first().Count * (len(a.attempts) - len(a.ok))
		}
		res.again += max(0, len(a.ok)-1)
		for i, t := range a.ok {
			if i > 0 && t.Values[0] == a.ok[0].Values[0] {
				continue
			}
			if i > 0 && !t.Block && t.Answered <= a.forgotten {
				res.violates(locksApplied, "%s: request %s was given %d, and then %d", key, t.Request, a.ok[0].Values[0], t.Values[0])
			}
			t.Sent = a.first().Sent // whichever attempt took them
			answered = append(answered, t)
			for _, v := range t.Values {
				if other, twice := taken[v]; twice {
					res.violates(locksValueTwice, "%s: %d for %s and %s", key, v, other, t.Request)
				}
				taken[v] = t.Request
				greatest = max(greatest, v)
			}
		}
	}
	res.values += len(taken)
	if block {
		return // gaps and disorder are the price
	}
	if lost := greatest - int64(len(taken)); lost > int64(missing) {
		res.violates(locksMissing, "%s: %d of %d, and %d can have been given out without anybody's knowledge", key, lost, greatest, missing)
	}
	checkOrder(res, key, answered)
}

// checkOrder: a value asked for after an answer is greater.
func checkOrder(res *lockResult, key string, answered []lockAttempt) {
	slices.SortFunc(answered, func(a, b lockAttempt) int { return cmp.Compare(a.Values[0], b.Values[0]) })
	for i, soonest := len(answered)-1, (*lockAttempt)(nil); i >= 0; i-- {
		a := &answered[i]
		if soonest != nil && soonest.Answered < a.Sent {
			res.violates(locksDisorder, "%s: %d was answered before %d was asked for", key, soonest.Values[0], a.Values[0])
		}
		if soonest == nil || a.Answered < soonest.Answered {
			soonest = a
		}
	}
}

// TestSequenceMemory: a call that comes again gets its values, unless the key has forgotten it.
// Then it gets new ones, and those of an attempt without an answer are lost.
func TestSequenceMemory(t *testing.T) {
	for _, others := range []int{sequence.MaxReceipts - 2, sequence.MaxReceipts - 1} { // beside one of the two
		var r lockRecord
		next := func(request string, value int64) {
			now := int64(len(r.attempts))
			r.attempts = append(r.attempts, lockAttempt{Op: "next", Key: "s", Request: request, Count: 1, Sent: 2 * now, Answered: 2*now + 1, Outcome: lockOK, Values: []int64{value}})
			if value == 0 {
				a := &r.attempts[now]
				a.Outcome, a.Values = lockUnknown, nil
			}
		}
		next("first", 1)
		next("lost", 0)
		for i := range others {
			next(fmt.Sprint(i), int64(i+3))
		}
		next("lost", int64(others+3))
		next("first", int64(others+4))
		res := lockResult{findings: findings{count: map[string]int{}}}
		_, sequences, _ := r.byKey()
		checkSequence(&res, "s", sequences["s"])
		if found := len(res.violations) > 0; found != (others < sequence.MaxReceipts-1) {
			t.Errorf("with %d others in between: %q", others+1, res.violations)
		}
	}
}

// TestLockMemory: an acquire that comes again is granted nothing, unless the lock has forgotten
// it. Then it may be granted another lease, whether its first answer came or not; that lease is
// judged like any other.
func TestLockMemory(t *testing.T) {
	for _, test := range []struct {
		others int
		early  bool
		want   []string
	}{
		{lock.MaxReceipts - 1, false, []string{locksApplied}},
		{lock.MaxReceipts, false, nil},
		{lock.MaxReceipts, true, []string{locksTwoHolders, locksStep}},
	} {
		for _, first := range []string{lockOK, lockUnknown} {
			res := forgottenAcquire(first, test.others, test.early).check()
			for _, what := range []string{locksApplied, locksTwoHolders, locksStep, locksTokens, locksFault} {
				if res.count[what] > 0 != slices.Contains(test.want, what) {
					t.Errorf("the first %s, %d others in between, granted early %v: found %q, want %q", first, test.others, test.early, res.violations, test.want)
					break
				}
			}
		}
	}
}

// forgottenAcquire is a record of an acquire with that outcome, which comes again after so many
// others, and is granted another lease: once the lock is free, or early.
func forgottenAcquire(first string, others int, early bool) lockRecord {
	const ms = int64(time.Millisecond)
	r := lockRecord{gap: time.Hour}
	clock, token := int64(0), int64(0)
	add := func(op lock.Op, request, outcome string, l lock.Lease) {
		r.attempts = append(r.attempts, lockAttempt{
			Op: op.String(), Key: "k", Request: request, Lease: l.LeaseID, TTLMS: 100, Sent: clock * ms, Answered: (clock + 2) * ms, Outcome: outcome, Got: l,
		})
		clock += 10
	}
	acquire := func(request, outcome string) lock.Lease {
		token++
		l := lock.Lease{Tenant: "default", Key: "k", Owner: "p0", LeaseID: fmt.Sprintf("%032x", token), Token: token, State: lock.Active,
			AcquiredMS: clock + 1, ExpiresMS: clock + 101, RemainingMS: 100}
		add(lock.Acquire, request, outcome, l)
		return l
	}
	release := func(l lock.Lease) {
		l.State = lock.Released
		add(lock.Release, "end "+l.LeaseID, lockOK, l)
	}
	release(acquire("before", lockOK))
	acquire("asked twice", first)
	clock += 200 // to the end of that lease
	for i := range others {
		if l := acquire(fmt.Sprint(i), lockOK); !early || i < others-1 {
			release(l)
		}
	}
	acquire("asked twice", lockOK)
	return r
}

// lockExample is a record without fault: two processes use a lock and a sequence
// in turn, each as a program does that loses answers now and then, and stands still once.
func lockExample() lockRecord {
	const ms = int64(time.Millisecond)
	r := lockRecord{until: 4000 * ms, gap: time.Second}
	clock := int64(0) // of the store too, in ms
	add := func(process int, op, request, lease string, outcome string, got lock.Lease) {
		got.Tenant, got.Key, got.Owner = "default", "k", cmp.Or(got.Owner, fmt.Sprintf("p%d", process))
		r.attempts = append(r.attempts, lockAttempt{
			Process: process, Op: op, Key: "k", Request: request, Lease: lease, TTLMS: 100, Sent: clock * ms, Answered: (clock + 2) * ms, Outcome: outcome, Got: got,
		})
		clock += 10
	}
	write := func(process int, l lock.Lease, outcome string) {
		add(process, "write", "", l.LeaseID, outcome, l)
		clock -= 10
		r.attempts[len(r.attempts)-1].Serial = clock
	}
	var left *lock.Lease // to its end, by the other process
	for i := range int64(20) {
		process, lease, serial := int(i%2), fmt.Sprintf("%032x", i+1), fmt.Sprint(i)
		began := clock
		l := lock.Lease{LeaseID: lease, Token: i + 1, State: lock.Active, AcquiredMS: clock + 1, ExpiresMS: clock + 101, RemainingMS: 100}
		add(process, "acquire", "a"+serial, lease, lockOK, l)
		write(process, l, lockOK)
		add(1-process, "acquire", "h"+serial, fmt.Sprintf("%032x", 1000+i), lockHeld, lock.Lease{
			Owner: fmt.Sprintf("p%d", process), Token: l.Token, ExpiresMS: l.ExpiresMS, RemainingMS: l.ExpiresMS - clock - 1,
		})
		if i > 0 && len(r.freezes) == 0 && left != nil {
			r.freezes = []lockFreeze{{process: 1 - process, key: "k", token: left.Token, from: (clock - 150) * ms, until: clock * ms}}
			write(1-process, *left, lockStale)
			add(1-process, "renew", "woken", left.LeaseID, lockNotOwned, lock.Lease{})
			add(1-process, "release", "woken too", left.LeaseID, lockNotOwned, lock.Lease{})
		}
		add(process, "renew", "r"+serial, lease, lockUnknown, lock.Lease{})
		l.ExpiresMS = clock + 101
		add(process, "renew", "r"+serial, lease, lockOK, l)
		add(process, "renew", "r"+serial, lease, lockOK, l)
		if left = &l; i%5 > 0 {
			l.State, left = lock.Released, nil
			add(process, "release", "e"+serial, lease, lockOK, l)
		}
		// All others leave their lease to its end.
		for clock < began+190 {
			r.attempts = append(r.attempts, lockAttempt{
				Process: process, Op: "next", Key: "s", Request: fmt.Sprintf("n%d", clock), Count: 2, Sent: clock * ms, Answered: (clock + 2) * ms, Outcome: lockOK,
				Values: []int64{2*int64(len(r.attempts)) + 1, 0},
			})
			clock += 10
		}
	}
	return r.numbered()
}

// numbered gives the values of the sequence out in order.
func (r lockRecord) numbered() lockRecord {
	next := int64(1)
	for i, a := range r.attempts {
		if a.Op == "next" {
			r.attempts[i].Values = []int64{next, next + 1}
			next += 2
		}
	}
	return r
}

// find is the index of the nth attempt of an operation that succeeded.
func (r lockRecord) find(op string, n int) int {
	for i, a := range r.attempts {
		if a.Op == op && a.Outcome == lockOK {
			if n--; n < 0 {
				return i
			}
		}
	}
	panic("there is no such attempt")
}

// refused is the nth attempt that was refused so.
func refused(r *lockRecord, outcome string, n int) *lockAttempt {
	for i := range r.attempts {
		if a := &r.attempts[i]; a.Outcome == outcome {
			if n--; n < 0 {
				return a
			}
		}
	}
	panic("there is no such refusal")
}

// TestLockChecker: the checker is content with a record without fault, and finds
// each fault that is put into it.
func TestLockChecker(t *testing.T) {
	res := lockExample().check()
	if len(res.violations) > 0 || res.done["acquire"] != 20 || res.again != 20 || res.left != 4 || res.unknown != 20 ||
		res.held != 20 || res.stale != 1 || res.refusedLate != 3 {
		t.Errorf("without fault: %+v", res)
	}
	const ms = int64(time.Millisecond)
	at := func(r *lockRecord, op string, n int) *lockAttempt { return &r.attempts[r.find(op, n)] }
	shift := func(a *lockAttempt, byMS int64) { a.Sent, a.Answered = a.Sent+byMS*ms, a.Answered+byMS*ms }
	for name, test := range map[string]struct {
		put  func(r *lockRecord)
		want []string
	}{
		"the store grants while a lease lives": {func(r *lockRecord) {
			// The lease of the first is left to its end, 130 ms after it began.
			a := at(r, "acquire", 1)
			a.Got.AcquiredMS -= 80
		}, []string{locksTwoHolders}},
		"the processes hold it both": {func(r *lockRecord) { shift(at(r, "acquire", 1), -100) }, []string{locksTwoHolders}},
		"granted before the release": {func(r *lockRecord) { shift(at(r, "acquire", 2), -150) }, []string{locksTwoHolders}},
		"a token of two leases":      {func(r *lockRecord) { at(r, "acquire", 7).Got.Token = at(r, "acquire", 6).Got.Token }, []string{locksRepeated}},
		"a token decreases": {func(r *lockRecord) {
			a, b := at(r, "acquire", 6).Got, at(r, "acquire", 7).Got
			for i, t := range r.attempts {
				switch got := &r.attempts[i].Got; t.Got.LeaseID {
				case a.LeaseID:
					got.Token, got.AcquiredMS = b.Token, b.AcquiredMS
				case b.LeaseID:
					got.Token, got.AcquiredMS = a.Token, a.AcquiredMS
				}
			}
		}, []string{locksTokens}},
		"a token decreases with the store's time": {func(r *lockRecord) {
			at(r, "acquire", 7).Got.AcquiredMS = at(r, "acquire", 6).Got.AcquiredMS - 1
		}, []string{locksTokens}},
		"a renewal shows another token": {func(r *lockRecord) { at(r, "renew", 0).Got.Token++ }, []string{locksTokens}},
		"a token too many": {func(r *lockRecord) {
			for i := range r.attempts {
				if r.attempts[i].Got.Token > 5 {
					r.attempts[i].Got.Token++
				}
			}
		}, []string{locksApplied}},
		"an acquire granted again": {func(r *lockRecord) {
			again := *at(r, "acquire", 3)
			again.Sent, again.Answered, again.Got.LeaseID, again.Got.Token = again.Sent+150*ms, again.Answered+150*ms, strings.Repeat("f", 32), 5
			r.attempts = append(r.attempts, again)
		}, []string{locksApplied}},
		"a renewal applied again":    {func(r *lockRecord) { at(r, "renew", 1).Got.ExpiresMS += 10 }, []string{locksApplied}},
		"a lock lost while it lives": {func(r *lockRecord) { at(r, "release", 0).Outcome = lockNotOwned }, []string{locksLost}},
		"a new request is known": {func(r *lockRecord) {
			again := *at(r, "acquire", 4)
			again.Request, again.Outcome = "new", lockReused
			r.attempts = append(r.attempts, again)
		}, []string{locksFault}},
		"refused for no reason": {func(r *lockRecord) { at(r, "acquire", 4).Outcome = lockRefused }, []string{locksFault}},
		"a value twice":         {func(r *lockRecord) { at(r, "next", 9).Values = at(r, "next", 8).Values }, []string{locksValueTwice, locksMissing}},
		"a value missing": {func(r *lockRecord) {
			i := r.find("next", 9)
			r.attempts = slices.Delete(r.attempts, i, i+1)
		}, []string{locksMissing}},
		"values out of order": {func(r *lockRecord) {
			a, b := at(r, "next", 9), at(r, "next", 8)
			a.Values, b.Values = b.Values, a.Values
		}, []string{locksDisorder}},
		"a request given values twice": {func(r *lockRecord) {
			i := r.find("next", 8)
			r.attempts[i+1].Request = r.attempts[i].Request
		}, []string{locksApplied}},
		"an old token overwrites a newer one": {func(r *lockRecord) { refused(r, lockStale, 0).Outcome = lockOK }, []string{locksWritten, locksLate}},
		"the holder cannot write":             {func(r *lockRecord) { at(r, "write", 7).Outcome = lockStale }, []string{locksTwoHolders}},
		"who had lost the lock renews it": {func(r *lockRecord) {
			a, before := refused(r, lockNotOwned, 0), at(r, "renew", 1).Got
			a.Outcome, a.Got = lockOK, before
			a.Got.ExpiresMS = before.ExpiresMS + 300
		}, []string{locksLate, locksTwoHolders}},
		"who had lost the lock releases it": {func(r *lockRecord) {
			a := refused(r, lockNotOwned, 1)
			a.Outcome, a.Got = lockOK, at(r, "renew", 0).Got
			a.Got.State = lock.Released
		}, []string{locksLate}},
		"renewed after the end": {func(r *lockRecord) {
			for n := range 2 {
				at(r, "renew", 10+n).Got.ExpiresMS += 100
			}
		}, []string{locksLate}},
		"who stood still does nothing": {func(r *lockRecord) { r.freezes[0].until = r.until }, []string{locksFault}},
		"held by one who had released it": {func(r *lockRecord) {
			refused(r, lockHeld, 9).Got = refused(r, lockHeld, 8).Got
		}, []string{locksNobody}},
		"held by one whose term was over": {func(r *lockRecord) {
			a := refused(r, lockHeld, 5)
			a.Got = refused(r, lockHeld, 4).Got
			r.attempts = append(r.attempts, *refused(r, lockHeld, 0))
			last := &r.attempts[len(r.attempts)-1]
			last.Request = "later"
			shift(last, 160)
		}, []string{locksNobody}},
		"a silence": {func(r *lockRecord) { r.until += 2 * int64(time.Second) }, []string{locksSilent}},
	} {
		t.Run(name, func(t *testing.T) {
			r := lockExample()
			test.put(&r)
			res := r.check()
			for _, want := range test.want {
				if res.count[want] == 0 {
					t.Errorf("found %q, want %q", strings.Join(res.violations, "\n"), want)
				}
			}
		})
	}
}

// A request with an unknown outcome may have taken values, and a lock.
func TestLockCheckerAllowsWhatIsUnknown(t *testing.T) {
	r := lockExample()
	early := &r.attempts[r.find("acquire", 2)].Got // granted when the one before was released, not when that ended
	early.AcquiredMS, early.ExpiresMS = early.AcquiredMS-65, early.ExpiresMS-65
	refused(&r, lockHeld, 2).Got.ExpiresMS -= 65
	unknown := r.find("acquire", 9)
	for _, i := range []int{r.find("next", 9), unknown, r.find("release", 0)} {
		r.attempts[i].Outcome = lockUnknown
	}
	refused(&r, lockHeld, 12).Got.ExpiresMS -= 20 // as of a moment before a renewal
	// The first attempt took the values, and another request was answered before the second.
	late := r.attempts[r.find("next", 40)]
	late.Sent, late.Answered = late.Sent+15*int64(time.Millisecond), late.Answered+15*int64(time.Millisecond)
	r.attempts[r.find("next", 40)].Outcome = lockUnknown
	r.attempts = append(r.attempts, late)
	lease := r.attempts[unknown].Lease
	r.until += 2 * int64(time.Second) // it stands still, and is not silent
	for process := range 2 {
		r.freezes = append(r.freezes, lockFreeze{process: process, from: r.until - 2*int64(time.Second), until: r.until})
	}
	r.attempts = slices.DeleteFunc(r.attempts, func(a lockAttempt) bool { return a.Lease == lease && a.Op != "acquire" })
	if res := r.check(); len(res.violations) > 0 {
		t.Error(res.violations)
	}
}
