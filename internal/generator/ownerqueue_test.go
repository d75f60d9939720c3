package generator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// waits is a request for more than there is now.
func (r *rig) waits(t *testing.T, owner any, count int64, timeout time.Duration) *Pending {
	t.Helper()
	_, p, err := r.Start(0, Request{Count: count, Timeout: timeout, Owner: owner}, nil)
	if p == nil || err != nil {
		t.Fatalf("%d IDs do not wait: %v", count, err)
	}
	return p
}

// nobodyWaits fails if the queue holds anything of those who have waited.
func (r *rig) nobodyWaits(t *testing.T) {
	t.Helper()
	if w := r.q.waiting; !w.empty() || len(w.by)+len(w.turns) > 0 {
		t.Errorf("%+v is left in the queue", w)
	}
}

// TestOwnersShare: an owner with a thousand requests leaves others their part of each
// millisecond, and the requests of one owner share its part.
func TestOwnersShare(t *testing.T) {
	onLease(t, 256, func(t *testing.T, r *rig) {
		var crowd []*Pending
		for range 1000 {
			crowd = append(crowd, r.waits(t, "crowd", 256, time.Hour))
		}
		one, many := r.waits(t, "one", 1, time.Hour), r.waits(t, "another", 128+128, time.Hour)
		time.Sleep(3 * time.Millisecond)
		synctest.Wait()
		for name, p := range map[string]*Pending{"one": one, "another": many} {
			if ranges, err := p.Result(); !p.ended || err != nil {
				t.Errorf("%s still waits after 3 ms, with %v, %v", name, ranges, err)
			}
		}
		least, most := int64(256), int64(0)
		for _, p := range crowd {
			least, most = min(least, 256-p.need), max(most, 256-p.need)
			p.Cancel(context.Canceled)
		}
		if most > least+1 {
			t.Errorf("one request of the crowd has %d IDs, and another one %d", most, least)
		}
		r.nobodyWaits(t)
		r.next(t, 256)
	})
}

// TestManyOwnersTakeTurns: where a millisecond has fewer IDs than there are owners, each
// has one of every few milliseconds, however much the others want.
func TestManyOwnersTakeTurns(t *testing.T) {
	onLease(t, 256, func(t *testing.T, r *rig) {
		const owners, rounds = 600, 4 // three milliseconds of 256 IDs serve all
		var all []*Pending
		for owner := range owners {
			for range 1 + owner%3 {
				all = append(all, r.waits(t, owner, 1000, time.Hour))
			}
		}
		time.Sleep(rounds * 3 * time.Millisecond)
		synctest.Wait()
		got := map[any]int64{}
		for _, p := range all {
			got[p.req.Owner] += 1000 - p.need
			p.Cancel(context.Canceled)
		}
		least, most := int64(1000), int64(0)
		for _, n := range got {
			least, most = min(least, n), max(most, n)
		}
		if least < rounds || most > least+1 {
			t.Errorf("the owners have %d to %d IDs after %d rounds", least, most, rounds)
		}
		r.nobodyWaits(t)
	})
}

// TestTimeoutsWithinALine: a request ends when its own time is over, wherever it stands
// among those of its owner, and the others keep their places.
func TestTimeoutsWithinALine(t *testing.T) {
	onLease(t, 256, func(t *testing.T, r *rig) {
		timeouts := []time.Duration{20, 5, 30, 10, 5, 30}
		var all []*Pending
		for i, ms := range timeouts {
			all = append(all, r.waits(t, i%2, 1_000_000, ms*time.Millisecond))
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
