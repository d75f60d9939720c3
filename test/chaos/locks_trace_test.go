package chaos

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/test/trace"
)

// lockTrace makes the trace of one lock from what its users were answered.
type lockTrace struct {
	trace.Locks
	leases  map[string]lockAttempt // the answers to acquires, by lease
	commits []lockCommit
}

// lockCommit is a request that the store has carried out.
type lockCommit struct {
	*lockAsked
	step trace.LockStep
}

// checkSteps follows what became of one lock through docs/model/Locks.tla. The store was
// not seen: tokens, and its times within a lease, tell the order of the requests that it
// carried out. A refusal changes nothing, so it is no step.
func (r lockRecord) checkSteps(res *lockResult, key string, all []*lockAsked) {
	t := &lockTrace{Locks: trace.Locks{Partial: true, Late: r.late, Jumps: r.jumps}, leases: map[string]lockAttempt{}}
	for _, a := range all {
		if len(a.ok) > 0 && a.first().Op == lock.Acquire.String() {
			t.leases[a.ok[0].Got.LeaseID] = a.ok[0]
		}
	}
	for _, a := range all {
		if step, ok := t.step(a); ok && len(a.ok) > 0 {
			t.commits = append(t.commits, lockCommit{a, step})
		}
	}
	t.order(res, key)
	for _, a := range all {
		t.asks(a)
	}
	for lease, by := range t.leases {
		t.relies(lease, by, all)
	}
	slices.SortStableFunc(t.Steps, func(a, b trace.LockStep) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(slices.Index(lockStepOrder, a.Do), slices.Index(lockStepOrder, b.Do)))
	})
	for _, broken := range t.Check().Broken {
		res.violates(locksStep, "%s: %s", key, broken)
	}
	res.steps += len(t.Steps)
}

// lockStepOrder is the order of steps at one moment.
var lockStepOrder = []string{"Ask", "Again", "Commit", "Repeat", "Receive"}

// step is a request as a step. It is not ok for a request about no known lease.
func (t *lockTrace) step(a *lockAsked) (s trace.LockStep, ok bool) {
	first := a.first()
	s = trace.LockStep{Host: first.Request, Op: first.Op, Number: first.Request, Sent: time.Duration(first.Sent), TermMS: first.TTLMS}
	switch first.Op {
	case lock.Acquire.String():
		if len(a.ok) > 0 {
			s.Token, s.StoreMS = a.ok[0].Got.Token, a.ok[0].Got.AcquiredMS
		}
		return s, true
	case lock.Renew.String(), lock.Release.String():
		var by lockAttempt
		by, ok = t.leases[first.Lease]
		s.Host, s.Token = by.Request, by.Got.Token
		if first.Op == lock.Renew.String() && len(a.ok) > 0 {
			s.StoreMS = a.ok[0].Got.ExpiresMS - first.TTLMS
		}
	}
	return s, ok
}

// order puts the commits where they may have been: after the request, and before the answer.
func (t *lockTrace) order(res *lockResult, key string) {
	ops := []string{lock.Acquire.String(), lock.Renew.String(), lock.Release.String()}
	slices.SortStableFunc(t.commits, func(a, b lockCommit) int {
		return cmp.Or(cmp.Compare(a.step.Token, b.step.Token), cmp.Compare(slices.Index(ops, a.step.Op), slices.Index(ops, b.step.Op)), cmp.Compare(a.step.StoreMS, b.step.StoreMS))
	})
	at := time.Duration(0)
	for i := range t.commits {
		c := &t.commits[i]
		if at = max(at, c.step.Sent); at > time.Duration(c.ok[0].Answered) {
			res.violates(locksStep, "%s: the %s of token %d was answered before the store can have carried it out", key, c.step.Op, c.step.Token)
		}
		c.step.Do, c.step.At = "Commit", at
		t.Steps = append(t.Steps, c.step)
	}
}

// asks adds the steps of one request.
func (t *lockTrace) asks(a *lockAsked) {
	s, ok := t.step(a)
	at := slices.IndexFunc(t.commits, func(c lockCommit) bool { return c.lockAsked == a })
	if !ok || at < 0 && !a.unsure() {
		return
	}
	add := func(do string, at int64) {
		s.Do, s.At = do, time.Duration(at)
		t.Steps = append(t.Steps, s)
	}
	s.StoreMS = 0
	add("Ask", a.first().Sent)
	for _, again := range a.attempts[1:] {
		if at >= 0 && again.Sent > a.ok[0].Sent {
			break // compared elsewhere
		}
		add("Again", again.Sent)
	}
	if at < 0 {
		return
	}
	if ok := a.ok[0]; ok.Sent != a.first().Sent && s.Op != lock.Release.String() {
		s.Sent, s.LeftMS = time.Duration(ok.Sent), ok.Got.RemainingMS
		add("Repeat", max(ok.Sent, int64(t.commits[at].step.At)))
	}
	add("Receive", a.ok[0].Answered)
}

// relies adds from when until when the holder of a lease relied on it.
func (t *lockTrace) relies(lease string, by lockAttempt, all []*lockAsked) {
	r := trace.Reliance{Host: by.Request, Token: by.Got.Token, From: time.Duration(by.Answered)}
	for _, a := range all {
		first := a.first()
		mine := len(a.ok) > 0 && (first.Lease == lease && first.Op == lock.Renew.String() || first.Request == by.Request)
		if mine {
			until := time.Duration(a.ok[0].Sent) + time.Duration(first.TTLMS)*time.Millisecond
			if a.ok[0].Sent != first.Sent {
				until = time.Duration(a.ok[0].Sent) + time.Duration(a.ok[0].Got.RemainingMS)*time.Millisecond
			}
			if time.Duration(a.ok[0].Answered) < until {
				r.Until = max(r.Until, until)
			}
		}
	}
	for _, a := range all {
		if first := a.first(); first.Lease == lease && first.Op == lock.Release.String() {
			r.Until = min(r.Until, time.Duration(first.Sent))
		}
	}
	if r.From < r.Until {
		t.Relied = append(t.Relied, r)
	}
}

// TestLockSteps: a step that the specification does not allow is found, beside all other checks.
func TestLockSteps(t *testing.T) {
	const ms = int64(time.Millisecond)
	at := func(r *lockRecord, op string, n int) *lockAttempt { return &r.attempts[r.find(op, n)] }
	if res := lockExample().check(); res.steps < 20*8 || res.count[locksStep] > 0 {
		t.Errorf("without fault: %d steps, %q", res.steps, res.violations)
	}
	for name, test := range map[string]struct {
		put  func(r *lockRecord)
		want string
	}{
		"granted while it is held": {func(r *lockRecord) { at(r, "acquire", 1).Got.AcquiredMS -= 80 }, "Decided: token 2 is granted while token 1 has"},
		"renewed when it is over": {func(r *lockRecord) {
			for n := range 2 {
				at(r, "renew", 10+n).Got.ExpiresMS += 150
			}
		}, "Decided: the store takes a renew of token 6"},
		"a token is left out": {func(r *lockRecord) {
			for i := range r.attempts {
				if r.attempts[i].Got.Token > 5 {
					r.attempts[i].Got.Token++
				}
			}
		}, "Token: token 7 is granted, and the next one is 6"},
		"granted before the one before": {func(r *lockRecord) {
			a := at(r, "acquire", 7)
			a.Sent, a.Answered = a.Sent-1000*ms, a.Answered-1000*ms
		}, "was answered before the store can have carried it out"},
		"two rely on it": {func(r *lockRecord) {
			a := at(r, "acquire", 1)
			a.Sent, a.Answered = a.Sent-100*ms, a.Answered-100*ms
		}, "OneHolder: tokens 1 and 2"},
	} {
		t.Run(name, func(t *testing.T) {
			r := lockExample()
			test.put(&r)
			if res := r.check(); !strings.Contains(strings.Join(res.violations, "\n"), locksStep) || !strings.Contains(strings.Join(res.violations, "\n"), test.want) {
				t.Errorf("found %q, want %q", res.violations, test.want)
			}
		})
	}
}
