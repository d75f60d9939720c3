package locktest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/record/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const t0 = 1_800_000_000_000

// said is one call of a history that is written out.
type said struct {
	from, to int64 // to 0: nobody knows what became of it
	request  lock.Request
	lease    lock.Lease
	err      error
}

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

// lease is what an acquire by owner under request n was answered, with so much
// passed since.
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

func held(l lock.Lease, at int64) error {
	return &lock.HeldError{Key: key, Owner: l.Owner, Token: l.Token, ExpiresMS: l.ExpiresMS, RemainingMS: l.ExpiresMS - t0 - at}
}

func (h *History) add(calls []said) {
	for i, c := range calls {
		one := call{client: i, request: c.request, called: c.from, returned: c.to, lease: c.lease, err: c.err}
		if c.to == 0 {
			one.returned, one.err = 1<<63-1, errUnknown
		}
		h.calls = append(h.calls, one)
	}
}

// TestCheck is what the checker must accept and, above all, must reject.
func TestCheck(t *testing.T) {
	const acq, ren, rel = lock.Acquire, lock.Renew, lock.Release
	a := granted("alice", 1, 1, 0)
	b := granted("bob", 2, 2, 500)
	late := granted("bob", 2, 2, 1000)
	repeated := with(a, func(l *lock.Lease) { l.Repeated = true })
	for _, test := range []struct {
		name  string
		good  bool
		calls []said
	}{
		{"one after the other", true, []said{
			{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(rel, "alice", 3), released(a), nil}, {5, 6, req(acq, "bob", 2), b, nil},
		}},
		{"in the other order, at once", true, []said{
			{3, 6, req(acq, "bob", 2), b, nil}, {1, 2, req(acq, "alice", 1), a, nil}, {4, 5, req(rel, "alice", 3), released(a), nil},
		}},
		{"after the end", true, []said{{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(acq, "bob", 2), late, nil}}},
		{"held", true, []said{{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(acq, "bob", 2), lock.Lease{}, held(a, 999)}}},
		{"repeated", true, []said{{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(acq, "alice", 1), repeated, nil}}},
		{"without an answer, and done", true, []said{
			{1, 0, req(acq, "alice", 1), lock.Lease{}, nil}, {3, 4, req(acq, "bob", 2), lock.Lease{}, held(a, 10)},
		}},
		{"without an answer, and not done", true, []said{
			{1, 0, req(acq, "alice", 1), lock.Lease{}, nil}, {3, 4, req(acq, "bob", 2), granted("bob", 2, 1, 0), nil},
		}},
		{"without an answer, and done late", true, []said{
			{1, 0, req(acq, "alice", 1), lock.Lease{}, nil},
			{2, 3, req(acq, "bob", 2), granted("bob", 2, 1, 0), nil}, {4, 5, req(rel, "bob", 3), released(granted("bob", 2, 1, 0)), nil},
			{6, 7, req(acq, "bob", 4), lock.Lease{}, &lock.HeldError{Key: key, Owner: "alice", Token: 2, ExpiresMS: t0 + 1500, RemainingMS: 900}},
		}},

		{"two holders (LS-INV-001)", false, []said{{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(acq, "bob", 2), b, nil}}},
		{"two holders at once (LS-CC-001)", false, []said{{1, 4, req(acq, "alice", 1), a, nil}, {2, 3, req(acq, "bob", 2), b, nil}}},
		{"in the last millisecond", false, []said{{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(acq, "bob", 2), granted("bob", 2, 2, 999), nil}}},
		{"the same token (LS-INV-002)", false, []said{
			{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(acq, "bob", 2), granted("bob", 2, 1, 1000), nil},
		}},
		{"a smaller token", false, []said{
			{1, 2, req(acq, "alice", 1), granted("alice", 1, 7, 0), nil}, {3, 4, req(acq, "bob", 2), granted("bob", 2, 6, 1000), nil},
		}},
		{"a token left out (LS-ACQ-003)", false, []said{
			{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(acq, "bob", 2), granted("bob", 2, 3, 1000), nil},
		}},
		{"held by nobody", false, []said{
			{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(rel, "alice", 3), released(a), nil}, {5, 6, req(acq, "bob", 2), lock.Lease{}, held(a, 10)},
		}},
		{"held past the end", false, []said{{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(acq, "bob", 2), lock.Lease{}, held(a, 1001)}}},
		{"released by another (LS-REL-001)", false, []said{{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(rel, "bob", 3), released(a), nil}}},
		{"renewed after the end (LS-INV-004)", false, []said{{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(ren, "alice", 3), renewed(a, 1000), nil}}},
		{"renewed after the release", false, []said{
			{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(rel, "alice", 3), released(a), nil}, {5, 6, req(ren, "alice", 4), renewed(a, 10), nil},
		}},
		{"granted twice (LS-ACC-04)", false, []said{
			{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(rel, "alice", 3), released(a), nil}, {5, 6, req(acq, "alice", 1), granted("alice", 1, 2, 10), nil},
		}},
		{"renewed twice (LS-RNW-003)", false, []said{
			{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(ren, "alice", 3), renewed(a, 10), nil}, {5, 6, req(ren, "alice", 3), renewed(a, 20), nil},
		}},
		{"refused to the owner", false, []said{{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(ren, "alice", 3), lock.Lease{}, lock.ErrNotOwned}}},
		{"a request ID that nobody used", false, []said{{1, 2, req(acq, "alice", 1), lock.Lease{}, lock.ErrRequestReused}}},
		{"held by somebody", true, []said{{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(acq, "bob", 2), lock.Lease{}, &lock.HeldError{}}}},
		{"held, until when is not told", true, []said{
			{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(acq, "bob", 2), lock.Lease{}, &lock.HeldError{Owner: "alice", Token: 1}},
		}},
		{"held by somebody, and nobody did", false, []said{
			{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(rel, "alice", 3), released(a), nil}, {5, 6, req(acq, "bob", 2), lock.Lease{}, &lock.HeldError{}},
		}},
		{"held by another", false, []said{
			{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(acq, "bob", 2), lock.Lease{}, &lock.HeldError{Owner: "carol", Token: 1}},
		}},
		{"held with another token", false, []said{
			{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, req(acq, "bob", 2), lock.Lease{}, &lock.HeldError{Owner: "alice", Token: 2}},
		}},
		{"forgotten", false, []said{{1, 2, req(acq, "alice", 1), a, nil}, {3, 4, lock.Request{Tenant: tenant, Key: key}, lock.Lease{}, lock.ErrNotFound}}},
		{"without an answer, and done twice", false, []said{
			{1, 0, req(acq, "alice", 1), lock.Lease{}, nil},
			{2, 3, req(acq, "bob", 2), lock.Lease{}, held(a, 10)}, {4, 5, req(rel, "alice", 3), released(a), nil},
			{6, 7, req(acq, "bob", 4), lock.Lease{}, held(with(a, func(l *lock.Lease) { l.Token = 2 }), 20)},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := &History{}
			h.add(test.calls)
			err := h.Check()
			if test.good && err != nil {
				t.Errorf("rejected: %v", err)
			}
			if !test.good && err == nil {
				t.Errorf("accepted:\n%s", h.show(name{tenant, key}))
			}
		})
	}
}

// TestCheckOfResends: a store that sends a request again by itself may answer
// with what the second attempt met, and no other may.
func TestCheckOfResends(t *testing.T) {
	a := granted("alice", 1, 1, 0)
	repeated := with(a, func(l *lock.Lease) { l.Repeated = true })
	release := said{2, 7, req(lock.Release, "alice", 3), released(a), nil}
	for _, test := range []struct {
		name    string
		resends bool // what it takes to accept it
		always  bool // it is accepted either way
		calls   []said
	}{
		{"carried out by the first attempt", true, false, []said{{1, 2, req(lock.Acquire, "alice", 1), repeated, nil}}},
		{"and ended before the second", true, false, []said{{3, 11, req(lock.Acquire, "alice", 1), lock.Lease{}, lock.ErrRequestReused}, release}},
		{"repeated by the caller", true, true, []said{{1, 2, req(lock.Acquire, "alice", 1), a, nil}, {3, 4, req(lock.Acquire, "alice", 1), repeated, nil}}},
		{"reused, and nobody ever held it", false, false, []said{
			{1, 2, req(lock.Acquire, "alice", 1), lock.Lease{}, lock.ErrRequestReused}, {3, 4, lock.Request{Tenant: tenant, Key: key}, lock.Lease{}, lock.ErrNotFound},
		}},
		{"granted twice", false, false, []said{{1, 2, req(lock.Acquire, "alice", 1), a, nil}, {3, 4, req(lock.Acquire, "bob", 2), with(granted("bob", 2, 2, 10), func(l *lock.Lease) { l.Repeated = true }), nil}}},
	} {
		for _, resends := range []bool{false, true} {
			h := &History{Allowed: Allowed{Resends: resends}}
			h.add(test.calls)
			want := test.always || test.resends && resends
			if err := h.Check(); (err == nil) != want {
				t.Errorf("%s, resends %v: %v", test.name, resends, err)
			}
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
		var group sync.WaitGroup
		for i := range historyClients {
			c := &chaosClient{
				Store: h.Client(i, store), owner: []string{alice, bob}[i%2], short: 100, round: "0", id: i,
				random: rand.New(rand.NewPCG(uint64(round), uint64(i))), pass: func(time.Duration) {}, patience: patience, lost: historyLost,
			}
			group.Go(c.run)
		}
		group.Wait()
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
