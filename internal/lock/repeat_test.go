package lock_test

import (
	"context"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

// again is a request that can be made again.
func again(owner string, wait time.Duration) lock.Wanted {
	want := wanted(owner, wait)
	want.RequestID = "again"
	return want
}

// TestAskedAgainLeavesNobodyInLine: who does not want to wait any more asks once
// more without a wait. Once that is answered, the lock is not granted to the first
// request, whose connection may be gone without the host's knowing.
func TestAskedAgainLeavesNobodyInLine(t *testing.T) {
	for name, connect := range map[string]func(*rig) *host{"notified": (*rig).host, "plain": (*rig).plain} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				h := connect(r)
				held := r.take(h, "holder")
				first := r.line(r.Context(), h, again("waiter", -1))
				r.waits(first)
				_, err := h.Acquire(r.Context(), again("waiter", 0))
				r.wantHeld(err)
				r.want(r.now(first).err, lock.ErrRequestReused)
				r.free(h, held)
				time.Sleep(time.Second)
				if l := r.state(); l.State != lock.Released {
					t.Errorf("the lock is %+v", l)
				}
			})
		})
	}
}

// TestAskedAgainKeepsThePlace: a connection was lost, and the next one waits on.
func TestAskedAgainKeepsThePlace(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		held := r.take(h, "holder")
		before := r.line(r.Context(), h, wanted("before", -1))
		first := r.line(r.Context(), h, again("waiter", -1))
		behind := r.line(r.Context(), h, wanted("behind", -1))
		second := r.line(r.Context(), h, again("waiter", -1))
		r.want(r.now(first).err, lock.ErrRequestReused)
		for _, c := range []<-chan result{before, second, behind} {
			r.waits(c)
			r.free(h, held)
			got := r.now(c)
			r.must(got.err)
			held = got.lease
		}
	})
}

// TestAskedAgainWhileTheStoreIsAsked: the second time is answered by the store, and
// gets what the first was granted. The first is told nothing of it: it may be gone,
// and have its lease released by whoever finds that out.
func TestAskedAgainWhileTheStoreIsAsked(t *testing.T) {
	for name, test := range map[string]struct {
		taken bool
		wait  time.Duration
	}{
		"free, no wait": {false, 0}, "free, a wait": {false, -1}, "held": {true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				h, other := r.plain(), r.plain()
				var held lock.Lease
				if test.taken {
					held = r.take(other, "holder")
				}
				h.slow(time.Second)
				first := r.line(r.Context(), h, again("waiter", -1))
				next := r.line(r.Context(), h, wanted("next", 30*time.Second))
				second := r.line(r.Context(), h, again("waiter", test.wait))
				time.Sleep(5 * time.Second)
				r.want(r.now(first).err, lock.ErrRequestReused)
				two := r.now(second)
				if test.taken {
					r.wantHeld(two.err)
					r.free(other, held)
				} else {
					r.must(two.err)
					if l := r.state(); l.LeaseID != two.lease.LeaseID || l.State != lock.Active || l.Token != 1 {
						t.Errorf("the lock is %+v, and the answer %+v", l, two.lease)
					}
					r.free(h, two.lease)
				}
				time.Sleep(15 * time.Second)
				r.must(r.now(next).err)
			})
		})
	}
}

// TestAskedAgainIsNotToldOldNews: the first is granted the lock at this moment, so
// that what is known of the holder before is not an answer to the second.
func TestAskedAgainIsNotToldOldNews(t *testing.T) {
	bubble(t, func(r *rig) {
		h, other := r.plain(), r.plain()
		held := r.take(other, "holder")
		first := r.line(r.Context(), h, again("waiter", -1))
		time.Sleep(5 * time.Second)
		h.slow(time.Second)
		r.free(other, held) // nothing tells h
		for before := h.calls.Load(); h.calls.Load() == before; {
			time.Sleep(10 * time.Millisecond)
		}
		got, err := h.Acquire(r.Context(), again("waiter", 0))
		r.must(err)
		r.want(r.now(first).err, lock.ErrRequestReused)
		if l := r.state(); l.LeaseID != got.LeaseID || l.State != lock.Active || l.Owner != "waiter" {
			t.Errorf("the lock is %+v, and the answer %+v", l, got)
		}
	})
}

// TestAskedAgainInAnOutage: nobody knows what became of the first request.
func TestAskedAgainInAnOutage(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.plain()
		h.deaf()
		first := r.line(r.Context(), h, again("waiter", -1))
		time.Sleep(time.Second)
		h.up()
		second := r.line(r.Context(), h, again("waiter", 0))
		time.Sleep(10 * time.Second)
		r.want(r.now(first).err, lock.ErrRequestReused)
		got := r.now(second)
		r.must(got.err)
		if l := r.state(); l.LeaseID != got.lease.LeaseID || l.State != lock.Active {
			t.Errorf("the lock is %+v, and the answer %+v", l, got.lease)
		}
	})
}

// TestAnotherRequestIsNoRepetition: the store judges what differs.
func TestAnotherRequestIsNoRepetition(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		held := r.take(h, "holder")
		first := r.line(r.Context(), h, again("waiter", -1))
		longer := again("waiter", 0)
		longer.TTL *= 2
		_, err := h.Acquire(r.Context(), longer)
		r.wantHeld(err)
		_, err = h.Acquire(r.Context(), again("somebody", 0))
		r.wantHeld(err)
		r.waits(first)
		r.free(h, held)
		r.must(r.now(first).err)
	})
}

// TestAskedAgainAndLeft: the same request came twice, on connections that were both
// lost. Whatever the first was granted is released, also by an answer that nobody
// saw.
func TestAskedAgainAndLeft(t *testing.T) {
	for name, lost := range map[string]bool{"answered": false, "not answered": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				h := r.plain()
				h.meet(nil, func(q lock.Request) error {
					if q.Op != lock.Acquire {
						return nil
					}
					time.Sleep(time.Second)
					if lost {
						return errDown
					}
					return nil
				})
				first := r.line(r.Context(), h, again("waiter", -1))
				ctx, cancel := context.WithCancel(r.Context())
				second := r.line(ctx, h, again("waiter", -1))
				r.want(r.now(first).err, lock.ErrRequestReused)
				if lost { // the first answer, and then the second is being waited for
					time.Sleep(1100 * time.Millisecond)
				}
				cancel()
				r.want(r.now(second).err, context.Canceled)
				time.Sleep(5 * time.Second)
				if l := r.state(); l.State != lock.Released || l.Token != 1 {
					t.Errorf("the lock is %+v, want it released", l)
				}
			})
		})
	}
}

// TestAskedAgainAfterAnOutageAndLeft: nobody knows what became of the first request,
// and the second leaves before the store is asked for it.
func TestAskedAgainAfterAnOutageAndLeft(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.plain()
		h.deaf()
		first := r.line(r.Context(), h, again("waiter", -1))
		ctx, cancel := context.WithCancel(r.Context())
		second := r.line(ctx, h, again("waiter", -1))
		r.want(r.now(first).err, lock.ErrRequestReused)
		cancel()
		r.want(r.now(second).err, context.Canceled)
		h.up()
		time.Sleep(ttl / 2)
		if l := r.state(); l.State != lock.Released || l.Token != 1 {
			t.Errorf("the lock is %+v, want it released", l)
		}
	})
}
