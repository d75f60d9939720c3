package locktest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

func TestMain(m *testing.M) { await.Main(m) }

const t0 = 1_800_000_000_000

// said is one call of a history that is written out.
type said struct {
	request  lock.Request
	lease    lock.Lease
	err      error
	from, to int64 // 0: one call after the other
}

// lost is a call without an answer.
func lost(r lock.Request) said { return said{request: r, err: errUnknown} }

// during has a call take place in a period.
func (c said) during(from, to int64) said { c.from, c.to = from, to; return c }

func id(n int) string { return fmt.Sprintf("%032x", n) }

func req(op lock.Op, owner string, n int) lock.Request {
	r := lock.Request{Op: op, Tenant: tenant, Key: key, Owner: owner, RequestID: fmt.Sprint("r", n), TTLMS: 1000}
	if op == lock.Acquire {
		r.LeaseID = id(n)
	}
	if op == lock.Release {
		r.TTLMS = 0
	}
	return r
}

// granted is the answer to an acquire under request n, so many ms after t0.
func granted(owner string, n int, token, at int64) lock.Lease {
	return lock.Lease{
		Tenant: tenant, Key: key, LeaseID: id(n), Owner: owner, Token: token, State: lock.Active,
		AcquiredMS: t0 + at, ExpiresMS: t0 + at + 1000, RemainingMS: 1000,
	}
}

func with(l lock.Lease, how func(*lock.Lease)) lock.Lease { how(&l); return l }

func released(l lock.Lease) lock.Lease {
	l.State, l.RemainingMS = lock.Released, 0
	return l
}

func renewed(l lock.Lease, at int64) lock.Lease {
	l.ExpiresMS = t0 + at + 1000
	return l
}

// held is an acquire that met the lease, with so many ms since t0.
func held(owner string, n int, l lock.Lease, at int64) said {
	return refused(lock.Acquire, owner, n, &lock.HeldError{Key: key, Owner: l.Owner, Token: l.Token, ExpiresMS: l.ExpiresMS, RemainingMS: l.ExpiresMS - t0 - at})
}

func refused(op lock.Op, owner string, n int, err error) said {
	return said{request: req(op, owner, n), err: err}
}

func acquired(owner string, n int, l lock.Lease) said {
	return said{request: req(lock.Acquire, owner, n), lease: l}
}

func check(resends bool, calls []said) error {
	h := &History{Allowed: Allowed{Resends: resends}}
	for i, c := range calls {
		if c.from == 0 {
			c.from, c.to = int64(10*i+1), int64(10*i+2)
		}
		h.Add(i, c.request, c.from, c.to, c.lease, c.err)
	}
	return h.Check()
}

// TestCheck is what the checker must accept and, above all, must reject.
func TestCheck(t *testing.T) {
	const acq, ren, rel = lock.Acquire, lock.Renew, lock.Release
	a, b := granted("alice", 1, 1, 0), granted("bob", 2, 2, 500)
	first := acquired("alice", 1, a)
	release := said{request: req(rel, "alice", 3), lease: released(a)}
	repeated := with(a, func(l *lock.Lease) { l.Repeated = true })
	bob := granted("bob", 2, 1, 0) // as the first
	get := lock.Request{Tenant: tenant, Key: key}
	for _, test := range []struct {
		name  string
		good  bool
		calls []said
	}{
		{"one after the other", true, []said{first, release, acquired("bob", 2, b)}},
		{"in the other order, at once", true, []said{acquired("bob", 2, b).during(3, 6), first.during(1, 2), release.during(4, 5)}},
		{"after the end", true, []said{first, acquired("bob", 2, granted("bob", 2, 2, 1000))}},
		{"held", true, []said{first, held("bob", 2, a, 999)}},
		{"repeated", true, []said{first, acquired("alice", 1, repeated)}},
		{"without an answer, and done", true, []said{lost(first.request), held("bob", 2, a, 10)}},
		{"without an answer, and not done", true, []said{lost(first.request), acquired("bob", 2, bob)}},
		{"without an answer, and done late", true, []said{
			lost(first.request), acquired("bob", 2, bob), {request: req(rel, "bob", 3), lease: released(bob)},
			held("bob", 4, granted("alice", 1, 2, 500), 600),
		}},
		{"held by somebody", true, []said{first, refused(acq, "bob", 2, &lock.HeldError{})}},
		{"held, without a time", true, []said{first, refused(acq, "bob", 2, &lock.HeldError{Owner: "alice", Token: 1})}},

		{"two holders (LS-INV-001)", false, []said{first, acquired("bob", 2, b)}},
		{"two holders at once (LS-CC-001)", false, []said{first.during(1, 4), acquired("bob", 2, b).during(2, 3)}},
		{"in the last millisecond", false, []said{first, acquired("bob", 2, granted("bob", 2, 2, 999))}},
		{"the same token (LS-INV-002)", false, []said{first, acquired("bob", 2, granted("bob", 2, 1, 1000))}},
		{"a smaller token", false, []said{acquired("alice", 1, granted("alice", 1, 7, 0)), acquired("bob", 2, granted("bob", 2, 6, 1000))}},
		{"a token left out (LS-ACQ-003)", false, []said{first, acquired("bob", 2, granted("bob", 2, 3, 1000))}},
		{"held by nobody", false, []said{first, release, held("bob", 2, a, 10)}},
		{"held past the end", false, []said{first, held("bob", 2, a, 1001)}},
		{"released by another (LS-REL-001)", false, []said{first, {request: req(rel, "bob", 3), lease: released(a)}}},
		{"renewed after the end (LS-INV-004)", false, []said{first, {request: req(ren, "alice", 3), lease: renewed(a, 1000)}}},
		{"renewed after the release", false, []said{first, release, {request: req(ren, "alice", 4), lease: renewed(a, 10)}}},
		{"granted twice (LS-ACC-04)", false, []said{first, release, acquired("alice", 1, granted("alice", 1, 2, 10))}},
		{"renewed twice (LS-RNW-003)", false, []said{
			first, {request: req(ren, "alice", 3), lease: renewed(a, 10)}, {request: req(ren, "alice", 3), lease: renewed(a, 20)},
		}},
		{"refused to the owner", false, []said{first, refused(ren, "alice", 3, lock.ErrNotOwned)}},
		{"a request ID that was never used", false, []said{refused(acq, "alice", 1, lock.ErrRequestReused)}},
		{"held by somebody after the release", false, []said{first, release, refused(acq, "bob", 2, &lock.HeldError{})}},
		{"held by another", false, []said{first, refused(acq, "bob", 2, &lock.HeldError{Owner: "carol", Token: 1})}},
		{"held with another token", false, []said{first, refused(acq, "bob", 2, &lock.HeldError{Owner: "alice", Token: 2})}},
		{"forgotten", false, []said{first, {request: get, err: lock.ErrNotFound}}},
		{"without an answer, and done twice", false, []said{
			lost(first.request), held("bob", 2, a, 10), release, held("bob", 4, with(a, func(l *lock.Lease) { l.Token = 2 }), 20),
		}},
	} {
		if err := check(false, test.calls); (err == nil) != test.good {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	// A store that sends a request again by itself may answer with what the second
	// attempt met, and no other may.
	for _, test := range []struct {
		name           string
		plain, resends bool // accepted
		calls          []said
	}{
		{"carried out by the first attempt", false, true, []said{acquired("alice", 1, repeated)}},
		{"and ended before the second", false, true, []said{refused(acq, "alice", 1, lock.ErrRequestReused).during(3, 11), release.during(2, 7)}},
		{"renewed by the first attempt, and ended before the second", false, true, []said{
			first.during(1, 2), refused(ren, "alice", 3, lock.ErrExpired).during(3, 8), held("bob", 4, renewed(a, 500), 600).during(5, 6),
		}},
		{"renewed by the first attempt, and released before the second", false, true, []said{
			first.during(1, 2), refused(ren, "alice", 3, lock.ErrNotOwned).during(3, 12), held("bob", 4, renewed(a, 500), 600).during(5, 6),
			said{request: req(rel, "alice", 5), lease: released(renewed(a, 500))}.during(9, 10),
		}},
		{"refused to one call, and carried out by the first attempt of the next", false, true, []said{
			acquired("bob", 2, bob).during(1, 2), held("alice", 3, bob, 100).during(3, 4), said{request: req(rel, "bob", 4), lease: released(bob)}.during(5, 6),
			acquired("alice", 3, with(granted("alice", 3, 2, 200), func(l *lock.Lease) { l.Repeated = true })).during(7, 8),
		}},
		{"renewed by nobody", false, false, []said{
			first.during(1, 2), refused(ren, "alice", 3, lock.ErrExpired).during(7, 8), held("bob", 4, renewed(a, 500), 600).during(5, 6),
		}},
		{"repeated by the caller", true, true, []said{first, acquired("alice", 1, repeated)}},
		{"reused, and never held", false, false, []said{refused(acq, "alice", 1, lock.ErrRequestReused), {request: get, err: lock.ErrNotFound}}},
		{"granted twice", false, false, []said{first, acquired("bob", 2, with(granted("bob", 2, 2, 10), func(l *lock.Lease) { l.Repeated = true }))}},
	} {
		if plain, resends := check(false, test.calls) == nil, check(true, test.calls) == nil; plain != test.plain || resends != test.resends {
			t.Errorf("%s: accepted %v, with resends %v", test.name, plain, resends)
		}
	}
}

// What comes before too many unknown outcomes is judged, and what comes after is not.
func TestManyUnknownOutcomes(t *testing.T) {
	a, b := granted("alice", 1, 1, 0), granted("bob", 2, 2, 500)
	first, second := acquired("alice", 1, a), acquired("bob", 2, b)
	many := func(from int64) (calls []said) {
		for i := range int64(4 * maxOpen) {
			calls = append(calls, lost(req(lock.Acquire, "carol", 10+int(i))).during(from+i, from+i))
		}
		return calls
	}
	for _, test := range []struct {
		name  string
		good  bool
		calls []said
	}{
		{"two holders before them", false, append([]said{first.during(1, 2), second.during(3, 4)}, many(10)...)},
		{"two holders after them", true, append(many(1), first.during(101, 102), second.during(103, 104))},
		{"a grant that is answered after them", true, append([]said{first.during(1, 200), held("bob", 2, a, 10).during(2, 3)}, many(10)...)},
		{"a look that is answered after them", true, append([]said{
			first.during(1, 2), {request: lock.Request{Tenant: tenant, Key: key}, err: lock.ErrNotFound, from: 3, to: 200},
		}, many(10)...)},
	} {
		if err := check(false, test.calls); (err == nil) != test.good {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// splitBrain is a store of two halves that know nothing of each other, as after a
// failover that went wrong.
type splitBrain struct {
	lock.Store
	other lock.Store
	turn  *atomic.Int64
}

func (s splitBrain) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if s.turn.Add(1)%2 == 0 {
		return s.other.Do(ctx, r)
	}
	return s.Store.Do(ctx, r)
}

func half() lock.Store { return lock.OnRecords(memory.New(func() int64 { return t0 })) }

// TestCheckRejectsARealSplitBrain has the suite's own clients use it.
func TestCheckRejectsARealSplitBrain(t *testing.T) {
	const rounds = 10
	rejected := 0
	for round := range rounds {
		store := splitBrain{half(), half(), &atomic.Int64{}}
		h := &History{}
		stores := slices.Repeat([]lock.Store{store}, historyClients)
		h.run(stores, chaosClient{round: "0", short: 100, patience: patience, lost: historyLost, pass: func(time.Duration) {}}, uint64(round))
		if err := h.Check(); err != nil {
			if !strings.Contains(err.Error(), "no lock behaves like") {
				t.Fatal(err)
			}
			rejected++
		}
	}
	if rejected == 0 {
		t.Errorf("%d histories of a split brain were accepted", rounds)
	}
}

// What the backend may forget is not judged where others speak of it, and is where it was
// promised.
func TestForgets(t *testing.T) {
	alices, bobs := granted("alice", 1, 1, 0), granted("bob", 2, 2, 500)
	for _, test := range []struct {
		name    string
		forgets bool
		good    bool
		calls   []said
	}{
		{"a refusal", true, true, []said{held("bob", 1, alices, 10), acquired("bob", 2, bobs)}},
		{"a refusal of one that forgets nothing", false, false, []said{held("bob", 1, alices, 10), acquired("bob", 2, bobs)}},
		{"a grant", true, false, []said{acquired("alice", 1, alices), acquired("bob", 2, bobs)}},
	} {
		h := &History{Allowed: Allowed{Forgets: func() bool { return test.forgets }}}
		for i, c := range test.calls {
			h.Add(i, c.request, int64(10*i+1), int64(10*i+2), c.lease, c.err)
		}
		if err := h.Check(); (err == nil) != test.good {
			t.Errorf("%s that is forgotten: %v", test.name, err)
		}
	}
}
