package lock_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

// TestOverdueLease: a store that is late to see that a lease has ended, as etcd is,
// is asked a few times meanwhile, and the lock is granted soon after.
func TestOverdueLease(t *testing.T) {
	for kind, most := range map[string]time.Duration{"polls": time.Second, "told of releases": 5 * time.Second, "server waits": 5 * time.Second} {
		for _, late := range []time.Duration{50 * time.Millisecond, 3 * time.Second, 10 * time.Second} {
			t.Run(fmt.Sprint(kind, " ", late), func(t *testing.T) {
				bubble(t, func(r *rig) { r.overdue(kind, late, most) })
			})
		}
	}
}

func (r *rig) overdue(kind string, late, most time.Duration) {
	front := r.plain()
	r.take(front, "holder")
	end := r.elapsed() + ttl
	h := front
	switch kind {
	case "told of releases":
		h = r.host()
	case "server waits":
		h = r.behind(front)
	}
	var asked atomic.Int64
	answer := func() error {
		time.Sleep(2 * time.Millisecond)
		if now := r.elapsed(); now < end || now >= end+late {
			return nil
		}
		asked.Add(1)
		return &lock.HeldError{Key: key, Owner: "holder", Token: 1, RemainingMS: 1}
	}
	front.meet(&obstacle{op: "all", answer: answer})
	h.meet(&obstacle{op: "all", answer: answer})
	got := <-r.line(r.Context(), h, wanted("next", -1))
	r.must(got.err)
	if asked.Load() > 25 {
		r.Errorf("the store was asked %d times while the lease was over its term", asked.Load())
	}
	if delay := got.at - end - late; delay > min(2*late, most)+100*time.Millisecond {
		r.Errorf("the lock was had %v after the store saw the end", delay)
	}
}
