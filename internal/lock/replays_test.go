package lock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/bounds"
	"github.com/kazahana/kazahana/internal/record/memory"
	"github.com/kazahana/kazahana/internal/record/receipt"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// timed is a request ID that tells the clock's next time.
func (r *rigged) timed() string {
	r.serial++
	ms := r.clock.Add(1)
	return fmt.Sprintf("%08x-%04x-7000-8000-%012x", ms>>16, ms&0xffff, r.serial)
}

// size is how many records there are of locks, and what the largest and all of them have.
func (r *rigged) size() (records, largest, all int) {
	r.Helper()
	for _, prefix := range []string{"lock/", "locked/"} {
		from := prefix
		for {
			page, err := r.records.List(r.Context(), prefix, from, record.MaxPage)
			r.must(err)
			for _, h := range page {
				from = h.Key
				v, err := r.records.Read(r.Context(), record.Ask{Keys: []string{h.Key}})
				r.must(err)
				n := len(v.Records[h.Key].Value)
				records, largest, all = records+1, max(largest, n), all+n
			}
			if len(page) < record.MaxPage {
				break
			}
		}
	}
	return records, largest, all
}

// TestAnswersAreKeptForTheirTime: whatever comes in between, and at whatever pace, the answer
// is there for receipt.Keep. Later the request is refused, and the store has deleted what
// was kept for it.
func TestAnswersAreKeptForTheirTime(t *testing.T) {
	ring.WithoutRace(t)
	for pace, further := range map[time.Duration]int{time.Millisecond: 20_000, 10 * time.Millisecond: 20_000, 100 * time.Millisecond: 5000, 10 * time.Second: 60} {
		t.Run(pace.String(), func(t *testing.T) {
			r := newRigged(t)
			r.do(r.request(lock.Acquire, r.timed()))
			renew, release := r.request(lock.Renew, r.timed()), r.request(lock.Release, r.timed())
			r.do(renew)
			want := r.do(release)
			want.Repeated = true
			began := r.clock.Load()
			for range further / 2 {
				r.clock.Add(pace.Milliseconds())
				r.do(r.request(lock.Acquire, r.timed()))
				r.clock.Add(pace.Milliseconds())
				r.do(r.request(lock.Release, r.timed()))
			}
			records, largest, all := r.size()
			t.Logf("%d requests: %d records, the largest of %d bytes, %d in all", further, records, largest, all)
			if largest > 40_000 || all > 60*further+5000 || records > 3+further/8 {
				t.Errorf("there are %d records of %d bytes, the largest of %d", records, all, largest)
			}
			r.clock.Store(max(r.clock.Load(), began+receipt.Keep.Milliseconds()-1))
			if l, err := r.store.Do(t.Context(), release); err != nil || l != want {
				t.Errorf("the release answers %+v, %v, want %+v", l, err, want)
			}
			if _, err := r.store.Do(t.Context(), renew); !errors.Is(err, lock.ErrNotOwned) {
				t.Errorf("the renewal answers %v", err)
			}
			r.clock.Add(2 * receipt.Keep.Milliseconds())
			r.must(sweep(r.records))
			for range 3 * lock.MaxReceipts { // of which some leave the record
				r.do(r.request(lock.Acquire, r.timed()))
				r.do(r.request(lock.Release, r.timed()))
			}
			held := r.do(r.request(lock.Acquire, r.timed()))
			for _, q := range []lock.Request{renew, release} {
				if l, err := r.store.Do(t.Context(), q); !errors.As(err, new(*lock.OldRequestError)) || !errors.Is(err, lock.ErrRequestReused) {
					t.Errorf("later, %v answers %+v, %v", q.Op, l, err)
				}
			}
			if l, err := r.store.Get(t.Context(), tenant, key); err != nil || l.LeaseID != held.LeaseID || l.State != lock.Active {
				t.Errorf("the lock is %+v, %v", l, err)
			}
			for range 10 { // each looks at some of what is due
				r.must(sweep(r.records))
			}
			if records, _, _ := r.size(); records > 8 {
				t.Errorf("%d records are left", records)
			}
		})
	}
}

// A release does not fail for want of room for receipts. They are forgotten, and the requests
// refused.
func TestNoRoomForWindows(t *testing.T) {
	r := newRigged(t)
	var passed time.Duration
	paid := bounds.New(memory.New(r.clock.Load), bounds.Limits{Keys: 1}, func() time.Duration { return passed })
	store := lock.OnRecords(paid)
	ctx := bounds.Pay(context.Background(), "alice")
	var first lock.Request
	for n := range 5 * lock.MaxReceipts {
		for _, op := range []lock.Op{lock.Acquire, lock.Renew, lock.Release} {
			r.clock.Add(10)
			q := r.request(op, r.timed())
			if _, err := store.Do(ctx, q); err != nil {
				t.Fatalf("%v %d: %v", op, n, err)
			}
			if n == 0 {
				first = q
			}
		}
	}
	if l, err := store.Do(ctx, first); !errors.Is(err, lock.ErrRequestReused) {
		t.Errorf("the first release answers %+v, %v", l, err)
	}
}

// A renewal without a term that is made again is answered, whatever the lock is held for by then.
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
