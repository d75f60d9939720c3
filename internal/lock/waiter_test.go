package lock_test

import (
	"context"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

// server is a store behind a server that waits by itself: the server is a Host.
type server struct {
	wire
	host *lock.Host
}

func (s server) AcquireWithin(ctx context.Context, r lock.Request, wait time.Duration) (lock.Lease, error) {
	if err := r.Validate(); err != nil {
		return lock.Lease{}, err
	}
	s.calls.Add(1)
	began := s.Elapsed()
	l, err := s.host.Acquire(ctx, lock.Wanted{
		Tenant: r.Tenant, Key: r.Key, Owner: r.Owner, RequestID: r.RequestID, TTL: r.TTL(), Wait: wait, Elsewhere: true,
	})
	l.RemainingMS += (s.Elapsed() - began).Milliseconds() // as the client of a lease server does
	return l, err
}

func (r *rig) behind(front *host) *host {
	l := &link{memory: r.memory, began: r.began, late: &r.late}
	h := &host{lock.NewHost(server{wire{l}, front.Host}, l, callTimeout), l}
	r.hosts = append([]*lock.Host{h.Host}, r.hosts...)
	return h
}

// TestServerWaits: two hosts wait through one server, with hardly a request. Which
// of them comes first is not promised; each host's own line is.
func TestServerWaits(t *testing.T) {
	bubble(t, func(r *rig) {
		front := r.plain()
		a, b := r.behind(front), r.behind(front)
		g, _ := r.hold(a, wanted("holder", 0))
		line := []<-chan result{r.line(r.Context(), b, wanted("one", -1)), r.line(r.Context(), b, wanted("two", -1))}
		other := r.line(r.Context(), a, wanted("other", -1))
		time.Sleep(90 * time.Second)
		r.waits(line[0])
		if n := b.calls.Load(); n > 12 {
			t.Errorf("the server was asked %d times in 90 s", n)
		}
		r.must(g.Release(r.Context()))
		for range 3 {
			time.Sleep(time.Second) // the server is not told of a release that it has not carried out
			select {
			case got := <-other:
				r.must(got.err)
				r.free(a, got.lease)
			case got := <-line[0]:
				r.must(got.err)
				r.free(b, got.lease)
				line = append(line[1:], nil)
			case <-time.After(ttl):
				t.Fatalf("at %v nobody has the lock", r.elapsed())
			}
		}
		if line[0] != nil {
			t.Errorf("somebody still waits")
		}
	})
}

func TestServerWaitsAsLongAsTheCaller(t *testing.T) {
	bubble(t, func(r *rig) {
		front := r.plain()
		held := r.take(front, "holder")
		h := r.behind(front)
		ctx, cancel := context.WithCancel(r.Context())
		gone := r.line(ctx, h, wanted("gone", -1))
		hasty := r.line(r.Context(), h, wanted("hasty", 7*time.Second))
		next := r.line(r.Context(), h, wanted("next", -1))
		time.Sleep(7 * time.Second)
		r.wantHeld(r.now(hasty).err)
		r.waits(gone)
		cancel()
		r.want(r.now(gone).err, context.Canceled)
		r.free(front, held)
		got := r.now(next)
		r.must(got.err)
		if got.lease.Token != held.Token+1 {
			t.Errorf("token %d after %d: the server still waited for one who was gone", got.lease.Token, held.Token)
		}
	})
}

// holdBehind holds through a server that waits by itself until another releases
// the lock, so long from now. It returns the host of the one who holds then.
func (r *rig) holdBehind(term, wait time.Duration) (*host, *lock.Holding, *losses) {
	r.Helper()
	front := r.plain()
	held := r.take(front, "first")
	h := r.behind(front)
	want, lost := wanted("second", -1), &losses{rig: r}
	want.TTL = term
	time.AfterFunc(wait, func() { r.free(front, held) })
	g, err := h.Hold(r.Context(), want, lost.told)
	r.must(err)
	if r.elapsed() != wait || h.calls.Load() > 2 {
		r.Fatalf("held at %v after %d requests, want the server to have waited %v", r.elapsed(), h.calls.Load(), wait)
	}
	return h, g, lost
}

// TestHoldTellsWhatIsLeft: not more than the store has, however long the lock was
// waited for and however long ago it was renewed.
func TestHoldTellsWhatIsLeft(t *testing.T) {
	bubble(t, func(r *rig) {
		h, g, lost := r.holdBehind(5*time.Second, 15*time.Second)
		check := func(what string, told lock.Lease) {
			r.Helper()
			if left := r.state().RemainingMS; told.RemainingMS > left || told.RemainingMS < left-5 {
				r.Errorf("at %v %s says that %d ms are left, the store %d", r.elapsed(), what, told.RemainingMS, left)
			}
		}
		check("the new holding", g.Lease())
		h.down()
		time.Sleep(4 * time.Second)
		check("the holding", g.Lease())
		h.suspended.Add(int64(time.Minute))
		time.Sleep(2 * time.Second)
		if told := lost.seen(); len(told) != 1 || told[0].lease.RemainingMS != 0 || g.Lease().RemainingMS != 0 {
			t.Errorf("long after the end, the holding says %+v, and the holder was told %+v", g.Lease(), told)
		}
	})
}

// TestHoldForLessThanWasWaited: the margin is a part of the term, and not of the
// wait too.
func TestHoldForLessThanWasWaited(t *testing.T) {
	bubble(t, func(r *rig) {
		_, g, lost := r.holdBehind(time.Second, 19500*time.Millisecond)
		time.Sleep(time.Minute)
		if l := r.state(); l.State != lock.Active || l.LeaseID != g.Lease().LeaseID || len(lost.seen()) != 0 {
			t.Errorf("the lock is %+v, and the holder was told %+v", l, lost.seen())
		}
	})
}
