package generator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// waits is a request for more than there is now.
func (r *rig) waits(t *testing.T, count int64, timeout time.Duration) *Pending {
	t.Helper()
	_, p, err := r.Start(0, Request{Count: count, Timeout: timeout}, nil)
	if p == nil || err != nil {
		t.Fatalf("%d IDs do not wait: %v", count, err)
	}
	return p
}

// nobodyWaits fails if the queue holds anything of requests that have waited.
func (r *rig) nobodyWaits(t *testing.T) {
	t.Helper()
	if w := r.q.waiting; len(w) > 0 {
		t.Errorf("%v is left in the queue", w)
	}
}

// TestRequestsShare: large batches leave a single ID its part of each millisecond, and
// share it evenly themselves.
func TestRequestsShare(t *testing.T) {
	onLease(t, 256, func(t *testing.T, r *rig) {
		var batches []*Pending
		for range 20 {
			batches = append(batches, r.waits(t, 1000, time.Hour))
		}
		one := r.waits(t, 1, time.Hour)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if ranges, err := one.Result(); !one.ended || err != nil {
			t.Errorf("one ID still waits after a millisecond, with %v, %v", ranges, err)
		}
		least, most := int64(1000), int64(0)
		for _, p := range batches {
			least, most = min(least, 1000-p.need), max(most, 1000-p.need)
			p.Cancel(context.Canceled)
		}
		if most > least+1 || least == 0 {
			t.Errorf("one batch has %d IDs, and another one %d", most, least)
		}
		r.nobodyWaits(t)
		r.next(t, 256)
	})
}

// TestTimeoutsWithinTheCircle: a request ends when its own time is over, wherever it stands,
// and the others keep their places.
func TestTimeoutsWithinTheCircle(t *testing.T) {
	onLease(t, 256, func(t *testing.T, r *rig) {
		timeouts := []time.Duration{20, 5, 30, 10, 5, 30}
		var all []*Pending
		for _, ms := range timeouts {
			all = append(all, r.waits(t, 1_000_000, ms*time.Millisecond))
		}
		for _, now := range []time.Duration{5, 10, 20, 30} {
			time.Sleep(now*time.Millisecond - time.Since(all[0].start))
			synctest.Wait()
			for i, p := range all {
				_, err := p.Result()
				var timeout *TimeoutError
				if over := timeouts[i] <= now; over != errors.As(err, &timeout) || over && timeout.Waited != timeouts[i]*time.Millisecond {
					t.Errorf("request %d, whose time is %d ms, has %v after %d ms", i, timeouts[i], err, now)
				}
			}
		}
		r.nobodyWaits(t)
		r.next(t, 256)
	})
}
