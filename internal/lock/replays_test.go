package lock_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/memory"
)

// delayed is a store of records that shows the rule one more state before it commits, as a store
// does after its first commit was overtaken.
type delayed struct {
	record.Store
	overtake func()
}

func (d *delayed) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	v, err := d.Store.Read(ctx, ask)
	if err != nil {
		return 0, err
	}
	_, _ = rule(v)
	if f := d.overtake; f != nil {
		d.overtake = nil
		f()
	}
	return d.Store.Change(ctx, ask, rule)
}

// The answer comes from the committed value, not from an earlier run of the rule.
func TestAnswerIsThatOfTheCommit(t *testing.T) {
	records := memory.New(nil)
	other := lock.OnRecords(records)
	r := newRigged(t)
	d := &delayed{Store: records}
	store := lock.OnRecords(d)
	d.overtake = func() {
		for _, op := range []lock.Op{lock.Acquire, lock.Release} {
			q := r.request(op, "")
			q.Owner = "bob"
			if _, err := other.Do(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		}
	}
	l, err := store.Do(t.Context(), r.request(lock.Acquire, "mine"))
	got, getErr := other.Get(t.Context(), tenant, key)
	if got.RemainingMS = l.RemainingMS; err != nil || getErr != nil || l.Token != 2 || l != got {
		t.Errorf("%+v, %v; the store has %+v, %v", l, err, got, getErr)
	}
	release := r.request(lock.Release, "gone")
	d.overtake = func() {
		if _, err := other.Do(t.Context(), release); err != nil {
			t.Fatal(err)
		}
	}
	if l, err := store.Do(t.Context(), release); err != nil || !l.Repeated || l.State != lock.Released || l.Token != 2 {
		t.Errorf("%+v, %v", l, err)
	}
}

// A release is answered the same at any time of the store's clock, and a lock's owner comes
// before its end.
func TestWhoseComesBeforeTime(t *testing.T) {
	r := newRigged(t)
	r.do(r.request(lock.Acquire, "a"))
	release := r.request(lock.Release, "r")
	want := r.do(release)
	want.Repeated = true
	for _, ms := range []int64{0, 600_000, -1_200_000} {
		r.clock.Add(ms)
		if l := r.do(release); l != want {
			t.Errorf("%d ms later, it answers %+v, want %+v", ms, l, want)
		}
	}
	r.clock.Store(startMS)
	r.do(r.request(lock.Acquire, "b"))
	r.clock.Add(lock.MaxTTL.Milliseconds())
	for owner, want := range map[string]error{"alice": lock.ErrExpired, "bob": lock.ErrNotOwned} {
		for _, op := range []lock.Op{lock.Renew, lock.Release} {
			q := r.request(op, "")
			if q.Owner = owner; op == lock.Renew {
				q.TTLMS = lock.MinTTL.Milliseconds()
			}
			if _, err := r.store.Do(t.Context(), q); !errors.Is(err, want) {
				t.Errorf("%v by %s answers %v, want %v", op, owner, err, want)
			}
		}
	}
}

// A renewal without a term that is made again is answered, under any holding of the lock by then.
func TestRenewalMadeAgain(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		g, err := h.Hold(r.Context(), wanted("a", 0), func(lock.Lease, error) {})
		r.must(err)
		q := lock.Request{Op: lock.Renew, Tenant: tenant, Key: key, Owner: "a", LeaseID: g.Lease().LeaseID, RequestID: "x"}
		longer := q
		longer.RequestID, longer.TTLMS = "y", 2*ttl.Milliseconds()
		for i, q := range []lock.Request{q, longer, q} {
			if l, err := h.Change(r.Context(), q); err != nil || l.Repeated != (i == 2) {
				r.Errorf("%d: %+v, %v", i, l, err)
			}
		}
		r.must(g.Release(r.Context()))
	})
}
