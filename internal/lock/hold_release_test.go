package lock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

// releasing has the holder ask for the release by name, which takes so long on its
// way and then fails with the error. The holding's own releases come through.
func (r *rig) releasing(h *host, g *lock.Holding, d time.Duration, err error) <-chan error {
	var releases atomic.Int64
	h.meet(func(q lock.Request) error {
		if q.Op == lock.Release && releases.Add(1) == 1 {
			time.Sleep(d)
			return err
		}
		return nil
	}, nil)
	done := make(chan error, 1)
	go func() {
		_, err := h.Change(context.Background(), lock.Request{Op: lock.Release, Tenant: tenant, Key: key, Owner: "holder", LeaseID: g.Lease().LeaseID})
		done <- err
	}()
	synctest.Wait()
	return done
}

// TestFailedOwnReleaseOfOneWhoIsGone: its connection closes while a release that it
// asked for is under way, which then fails. Nobody is left to renew for.
func TestFailedOwnReleaseOfOneWhoIsGone(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		g, lost := r.hold(h, wanted("holder", 0))
		done := r.releasing(h, g, 2*time.Second, errDown)
		r.must(g.Release(r.Context()))
		r.want(<-done, errDown)
		synctest.Wait()
		if l := r.state(); l.State != lock.Released || len(lost.seen()) != 0 {
			t.Errorf("the lock is %+v, and the holder was told %+v", l, lost.seen())
		}
	})
}

// TestOwnReleaseOfOneWhoIsGone: likewise, but the release comes through, and is
// answered with what it did.
func TestOwnReleaseOfOneWhoIsGone(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		g, lost := r.hold(h, wanted("holder", 0))
		done := r.releasing(h, g, 2*time.Second, nil)
		r.must(g.Release(r.Context()))
		r.must(<-done)
		calls := h.calls.Load()
		time.Sleep(time.Hour)
		if l := r.state(); l.State != lock.Released || len(lost.seen()) != 0 || h.calls.Load() != calls {
			t.Errorf("the lock is %+v after %d more requests, and the holder was told %+v", l, h.calls.Load()-calls, lost.seen())
		}
	})
}

// TestCloseDuringOwnRelease: a host that is closing leaves nothing to a release that
// may fail after it.
func TestCloseDuringOwnRelease(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		g, _ := r.hold(h, wanted("holder", 0))
		done := r.releasing(h, g, 2*time.Second, errDown)
		r.must(g.Release(r.Context()))
		r.must(h.Close(r.Context()))
		if l := r.state(); l.State != lock.Released {
			t.Errorf("the lock is %+v, want it released", l)
		}
		r.want(<-done, errDown)
	})
}

// TestRefusalDuringTheSecondOwnReleaseIsNoLoss: of two that the holder asked for, one
// has failed, and the other was carried out, but is not answered yet.
func TestRefusalDuringTheSecondOwnReleaseIsNoLoss(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		g, lost := r.hold(h, wanted("holder", 0))
		time.Sleep(ttl/3 - time.Second)
		failing := r.releasing(h, g, 500*time.Millisecond, errDown)
		h.meet(nil, func(q lock.Request) error {
			if q.Op == lock.Release {
				time.Sleep(2 * time.Second)
			}
			return nil
		})
		r.free(h, g.Lease())
		r.want(<-failing, errDown)
		time.Sleep(time.Hour)
		if l := r.state(); l.State != lock.Released || len(lost.seen()) != 0 {
			t.Errorf("the lock is %+v, and the holder was told %+v", l, lost.seen())
		}
	})
}

// TestHeldTooLateIsReleased: the request was long on its way. Whoever is told that
// the lock was granted too late leaves nothing behind.
func TestHeldTooLateIsReleased(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		h.meet(func(q lock.Request) error {
			if q.Op == lock.Acquire {
				time.Sleep(2 * time.Second)
			}
			return nil
		}, nil)
		want, lost := wanted("holder", 0), &losses{rig: r}
		want.TTL = time.Second
		_, err := h.Hold(r.Context(), want, lost.told)
		r.want(err, lock.ErrExpired)
		synctest.Wait()
		if l := r.state(); l.State != lock.Released || len(lost.seen()) != 0 {
			t.Errorf("the lock is %+v, and the holder was told %+v", l, lost.seen())
		}
	})
}

// TestUnconfirmedHoldIsReleased: the answer to the acquire was lost, the host has
// asked again, and knows not whether there is still something to hold. Only a
// caller who named the request can ask for it again.
func TestUnconfirmedHoldIsReleased(t *testing.T) {
	for name, want := range map[string]struct {
		requestID string
		leaves    bool // its connection closes meanwhile
		state     lock.Status
	}{
		"the store fails":                    {state: lock.Released},
		"the caller leaves":                  {leaves: true, state: lock.Released},
		"the store fails one who asks again": {requestID: "again", state: lock.Active},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				h := r.host()
				ctx, cancel := context.WithCancel(r.Context())
				defer cancel()
				var acquires atomic.Int64
				h.meet(nil, func(q lock.Request) error {
					switch {
					case q.Op == lock.Acquire && acquires.Add(1) == 1:
						return errDown
					case q.Op == lock.Renew && want.leaves:
						cancel()
						return ctx.Err()
					case q.Op == lock.Renew:
						return errDown
					}
					return nil
				})
				asked := wanted("holder", -1)
				asked.RequestID = want.requestID
				_, err := h.Hold(ctx, asked, (&losses{rig: r}).told)
				if want.leaves {
					r.want(err, context.Canceled)
				} else {
					r.want(err, errDown)
				}
				synctest.Wait()
				if l := r.state(); l.State != want.state {
					t.Errorf("the lock is %+v, want it %s", l, want.state)
				}
			})
		})
	}
}
