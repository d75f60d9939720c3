package etcd

import (
	"testing"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit/etcdtest"
)

// Who watches a prefix hears of locks that come and go, and not of those that are
// renewed, or of others.
func TestChanges(t *testing.T) {
	s := mustOpen(t, etcdtest.Shared(t))
	ctx := testContext(t)
	tokens, err := s.Changes(ctx, "t", "members/")
	if err != nil {
		t.Fatal(err)
	}
	do := func(op lock.Op, key, lease string) {
		t.Helper()
		r := lock.Request{Op: op, Tenant: "t", Key: key, Owner: "o", LeaseID: lease, TTLMS: 60_000}
		if op == lock.Release {
			r.TTLMS = 0
		}
		if _, err := s.Do(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	told := func(what string) {
		t.Helper()
		select {
		case <-tokens:
		case <-ctx.Done():
			t.Fatalf("nothing is told of %s", what)
		}
	}
	one, other := lock.NewLeaseID(), lock.NewLeaseID()
	do(lock.Acquire, "members/a", one)
	told("the first")
	do(lock.Renew, "members/a", one)
	do(lock.Acquire, "others/a", other)
	do(lock.Release, "others/a", other)
	do(lock.Release, "members/a", one)
	told("its end")
	do(lock.Acquire, "members/b", lock.NewLeaseID())
	told("the second")
	select {
	case <-tokens:
		t.Error("told of what nobody asked for")
	default:
	}
}
