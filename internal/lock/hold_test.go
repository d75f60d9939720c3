package lock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

func TestHoldRenews(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		g, lost := r.hold(h, wanted("holder", 0))
		first := g.Lease()
		time.Sleep(time.Hour)
		l := r.state()
		if l.State != lock.Active || l.LeaseID != first.LeaseID || l.RemainingMS < (ttl*2/3).Milliseconds() {
			t.Errorf("after an hour the lock is %+v", l)
		}
		if got := g.Lease(); got.ExpiresMS != l.ExpiresMS {
			t.Errorf("the holding says %+v, the store %+v", got, l)
		}
		if n := h.calls.Load(); n < 355 || n > 365 {
			t.Errorf("%d requests in an hour, want one in 10 s", n)
		}
		r.must(g.Release(r.Context()))
		if l := r.state(); l.State != lock.Released {
			t.Errorf("the lock is %+v, want it released", l)
		}
		time.Sleep(time.Hour)
		if told := lost.seen(); len(told) != 0 {
			t.Errorf("the holder was told of a loss: %+v", told)
		}
		r.must(g.Release(r.Context()))
	})
}

// TestReleaseOfAHoldingWakes: the connection of a holder closes, and the first in
// line has the lock at once.
func TestReleaseOfAHoldingWakes(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.plain()
		g, _ := r.hold(h, wanted("holder", 0))
		c := r.line(r.Context(), h, wanted("next", -1))
		time.Sleep(5 * time.Second)
		r.waits(c)
		r.must(g.Release(r.Context()))
		if got := r.now(c); got.err != nil || got.at != 5*time.Second {
			t.Errorf("acquired %+v", got)
		}
	})
}

func TestLossByRefusalIsToldOnceAndToTheHolderOnly(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		g, lost := r.hold(h, wanted("a", 0))
		other := wanted("a", 0)
		other.Key = "another"
		_, otherLost := r.hold(h, other)
		// Somebody with the same name releases it behind the host's back.
		_, err := r.memory.Do(r.Context(), lock.Request{Op: lock.Release, Tenant: tenant, Key: key, Owner: "a"})
		r.must(err)
		time.Sleep(time.Hour)
		told := lost.seen()
		if len(told) != 1 || told[0].lease.LeaseID != g.Lease().LeaseID || told[0].at > ttl/3+time.Second {
			t.Fatalf("the holder was told %+v, want one loss by %v", told, ttl/3)
		}
		r.want(told[0].err, lock.ErrNotOwned)
		if n := len(otherLost.seen()); n != 0 {
			t.Errorf("another holder was told of %d losses", n)
		}
		r.must(g.Release(r.Context()))
	})
}

// TestLossWithoutRenewal: the store cannot be reached. The holder must know before
// anybody else can have the lock.
func TestLossWithoutRenewal(t *testing.T) {
	for name, cut := range map[string]func(*link){
		"down":   (*link).down,
		"frozen": func(l *link) { l.meet(func(lock.Request) error { time.Sleep(callTimeout); return errDown }, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				h := r.host()
				_, lost := r.hold(h, wanted("holder", 0))
				time.Sleep(15 * time.Second) // renewed at 10 s
				cut(h.link)
				calls := h.calls.Load()
				end := 10*time.Second + ttl
				time.Sleep(end - 15*time.Second)
				told := lost.seen()
				if len(told) != 1 || told[0].at >= end || told[0].at < end-ttl/10 {
					t.Fatalf("the holder was told %+v, want one loss shortly before %v", told, end)
				}
				r.want(told[0].err, lock.ErrExpired)
				if n := h.calls.Load() - calls; n < 3 || n > 40 {
					t.Errorf("renewal was tried %d times", n)
				}
				time.Sleep(time.Hour)
				if told := lost.seen(); len(told) != 1 {
					t.Errorf("the holder was told %+v", told)
				}
			})
		})
	}
}

// TestShortOutageIsSurvived: a renewal fails, and a later one comes through.
func TestShortOutageIsSurvived(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		g, lost := r.hold(h, wanted("holder", 0))
		time.Sleep(9 * time.Second)
		h.down()
		time.Sleep(15 * time.Second)
		h.up()
		time.Sleep(time.Hour)
		if l := r.state(); l.LeaseID != g.Lease().LeaseID || l.State != lock.Active || len(lost.seen()) != 0 {
			t.Errorf("the lock is %+v, and the holder was told %+v", l, lost.seen())
		}
	})
}

// TestSuspendedMachine: timers stood still, and the lease ended meanwhile.
func TestSuspendedMachine(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		_, lost := r.hold(h, wanted("holder", 0))
		time.Sleep(2 * time.Second)
		h.suspended.Add(int64(time.Hour))
		time.Sleep(time.Second)
		if told := lost.seen(); len(told) != 1 {
			t.Errorf("a second after the machine woke up, the holder was told %+v", told)
		}
	})
}

// TestSlowRenewalCountsFromBeforeItWasSent: the answers take long, so that what is
// left of each renewal is that much less.
func TestSlowRenewalCountsFromBeforeItWasSent(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		_, lost := r.hold(h, wanted("holder", 0))
		time.Sleep(9 * time.Second)
		// Carried out at 10 s, answered at 12 s, and from then on nothing.
		h.slow(2 * time.Second)
		time.Sleep(3100 * time.Millisecond)
		h.down()
		time.Sleep(time.Hour)
		told := lost.seen()
		if want := 10*time.Second + ttl - ttl/20; len(told) != 1 || told[0].at != want {
			t.Errorf("the holder was told %+v, want one loss at %v", told, want)
		}
	})
}

// TestOwnReleaseIsNoLoss: the holder asks for the release as others do.
func TestOwnReleaseIsNoLoss(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		g, lost := r.hold(h, wanted("holder", 0))
		r.free(h, g.Lease())
		next := r.take(h, "next")
		time.Sleep(ttl - time.Second)
		r.must(g.Release(r.Context()))
		if l := r.state(); l.LeaseID != next.LeaseID || l.State != lock.Active || len(lost.seen()) != 0 {
			t.Errorf("the lock is %+v, and the holder was told %+v", l, lost.seen())
		}
	})
}

// TestRefusalDuringOwnReleaseIsNoLoss: a renewal is on its way while the holder
// asks for the release, and arrives after that, but is answered first.
func TestRefusalDuringOwnReleaseIsNoLoss(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		g, lost := r.hold(h, wanted("holder", 0))
		only := func(op lock.Op) func(lock.Request) error {
			return func(q lock.Request) error {
				if q.Op == op {
					time.Sleep(time.Second)
				}
				return nil
			}
		}
		h.meet(only(lock.Renew), only(lock.Release))
		time.Sleep(ttl/3 + 500*time.Millisecond)
		r.free(h, g.Lease())
		time.Sleep(time.Hour)
		if l := r.state(); l.State != lock.Released || len(lost.seen()) != 0 {
			t.Errorf("the lock is %+v, and the holder was told %+v", l, lost.seen())
		}
	})
}

// TestFailedOwnReleaseKeepsHolding: its release did not reach the store.
func TestFailedOwnReleaseKeepsHolding(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		g, lost := r.hold(h, wanted("holder", 0))
		h.down()
		_, err := h.Change(r.Context(), lock.Request{Op: lock.Release, Tenant: tenant, Key: key, Owner: "holder"})
		r.want(err, errDown)
		h.up()
		time.Sleep(time.Hour)
		if l := r.state(); l.LeaseID != g.Lease().LeaseID || l.State != lock.Active || len(lost.seen()) != 0 {
			t.Errorf("the lock is %+v, and the holder was told %+v", l, lost.seen())
		}
	})
}

func TestRenewalOfAHeldLock(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		r.hold(h, wanted("holder", 0))
		renew := lock.Request{Op: lock.Renew, Tenant: tenant, Key: key, Owner: "holder", TTLMS: ttl.Milliseconds() - 1}
		_, err := h.Change(r.Context(), renew)
		r.want(err, lock.ErrInvalid) // it would end before the host renews it
		renew.TTLMS = 4 * ttl.Milliseconds()
		_, err = h.Change(r.Context(), renew)
		r.must(err)
		time.Sleep(time.Hour)
		if l := r.state(); l.State != lock.Active || l.RemainingMS < (2*ttl).Milliseconds() {
			t.Errorf("the lock is %+v, want it renewed for the longer term", l)
		}
	})
}

// TestTakingOver: the holder has a new connection and asks again, before the host
// knows that the old one is gone.
func TestTakingOver(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		want := wanted("holder", 0)
		want.RequestID = "again"
		old, oldLost := r.hold(h, want)
		fresh, lost := r.hold(h, want)
		if old.Lease().LeaseID != fresh.Lease().LeaseID {
			t.Fatalf("two leases: %+v and %+v", old.Lease(), fresh.Lease())
		}
		r.must(old.Release(r.Context()))
		time.Sleep(time.Hour)
		if l := r.state(); l.State != lock.Active || len(lost.seen())+len(oldLost.seen()) != 0 {
			t.Errorf("the lock is %+v; told were %+v and %+v", l, oldLost.seen(), lost.seen())
		}
		r.must(fresh.Release(r.Context()))
		if l := r.state(); l.State != lock.Released {
			t.Errorf("the lock is %+v, want it released", l)
		}
	})
}

// TestTakingOverWhileReleased: the old connection's release is under way when the
// holder asks again. Whatever it is told, it must not believe that it holds.
func TestTakingOverWhileReleased(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		want := wanted("holder", 0)
		want.RequestID = "again"
		old, _ := r.hold(h, want)
		h.meet(func(q lock.Request) error {
			if q.Op == lock.Release {
				time.Sleep(time.Second) // it has not arrived yet
			}
			return nil
		}, nil)
		go func() { _ = old.Release(context.Background()) }()
		time.Sleep(500 * time.Millisecond)
		lost := &losses{rig: r}
		_, err := h.Hold(r.Context(), want, lost.told)
		r.want(err, lock.ErrRequestReused)
		time.Sleep(time.Second)
		if l := r.state(); l.State != lock.Released {
			t.Errorf("the lock is %+v, want it released", l)
		}
	})
}

// TestTakingOverWhatWasReleased: the store had answered before the old connection's
// release was carried out, and the answer comes after it.
func TestTakingOverWhatWasReleased(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		want := wanted("holder", 0)
		want.RequestID = "again"
		old, _ := r.hold(h, want)
		h.meet(nil, func(q lock.Request) error {
			if q.Op == lock.Acquire {
				time.Sleep(time.Second)
			}
			return nil
		})
		go func() {
			time.Sleep(500 * time.Millisecond)
			_ = old.Release(context.Background())
		}()
		_, err := h.Hold(r.Context(), want, (&losses{rig: r}).told)
		r.want(err, lock.ErrRequestReused)
	})
}

// TestRenewedButLost: the last renewals were carried out, and nobody knows. What
// the holder was told to have lost is not kept from the others for a term.
func TestRenewedButLost(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		_, lost := r.hold(h, wanted("holder", 0))
		h.meet(nil, func(lock.Request) error { return errDown })
		time.Sleep(ttl)
		if told := lost.seen(); len(told) != 1 {
			t.Fatalf("the holder was told %+v", told)
		}
		if l := r.state(); l.State != lock.Released {
			t.Errorf("the lock is %+v, want it released", l)
		}
	})
}

// TestHungStore: a renewal never returns, whatever its context says.
func TestHungStore(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		_, lost := r.hold(h, wanted("holder", 0))
		h.meet(func(q lock.Request) error {
			if q.Op == lock.Renew {
				time.Sleep(time.Hour)
			}
			return errDown
		}, nil)
		time.Sleep(ttl)
		if told := lost.seen(); len(told) != 1 || told[0].at >= ttl {
			t.Errorf("the holder was told %+v, want one loss before %v", told, ttl)
		}
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		before := r.elapsed()
		r.want(h.Close(ctx), context.DeadlineExceeded)
		if r.elapsed() > before+time.Second {
			t.Errorf("Close took %v", r.elapsed()-before)
		}
	})
}

// TestReleaseOutlastsAnOutage: the connection is gone, and so is the store, for a
// while.
func TestReleaseOutlastsAnOutage(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		g, _ := r.hold(h, wanted("holder", 0))
		h.down()
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		r.want(g.Release(ctx), context.DeadlineExceeded)
		h.up()
		time.Sleep(3 * time.Second)
		if l := r.state(); l.State != lock.Released {
			t.Errorf("the lock is %+v, want it released", l)
		}
	})
}

// TestTakingOverTooLate: the new connection is refused, and the old one's holding
// goes on as if nothing had been.
func TestTakingOverTooLate(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		want := wanted("holder", 0)
		want.RequestID, want.TTL = "again", 2*time.Second
		old, lost := r.hold(h, want)
		var renewals atomic.Int64
		h.meet(func(q lock.Request) error {
			if q.Op == lock.Renew && renewals.Add(1) == 1 {
				time.Sleep(callTimeout - time.Second/2)
			}
			return nil
		}, nil)
		_, err := h.Hold(r.Context(), want, (&losses{rig: r}).told)
		r.want(err, lock.ErrExpired)
		time.Sleep(time.Hour)
		if l := r.state(); l.State != lock.Active || l.LeaseID != old.Lease().LeaseID || len(lost.seen()) != 0 {
			t.Errorf("the lock is %+v, and the holder was told %+v", l, lost.seen())
		}
	})
}
