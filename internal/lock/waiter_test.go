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
	s.calls.Add(1)
	return s.host.Acquire(ctx, lock.Wanted{
		Tenant: r.Tenant, Key: r.Key, Owner: r.Owner, RequestID: r.RequestID, TTL: r.TTL(), Wait: wait, Elsewhere: true,
	})
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
