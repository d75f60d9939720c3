package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

// slowAcquires has the answers to acquires take their time.
func (l *link) slowAcquires(d time.Duration) {
	l.meet(nil, func(q lock.Request) error {
		if q.Op == lock.Acquire {
			time.Sleep(d)
		}
		return nil
	})
}

// TestReleaseWhileTheStoreIsAsked: the answer that the lock is held was given
// before the release, and arrives after it. Nobody who asked after the release is
// told it, and the first in line is asked for again at once.
func TestReleaseWhileTheStoreIsAsked(t *testing.T) {
	for _, alone := range []bool{true, false} {
		bubble(t, func(r *rig) {
			h := r.plain()
			held := r.take(h, "holder")
			h.slowAcquires(time.Second)
			next := r.line(r.Context(), h, wanted("next", -1))
			time.Sleep(time.Second / 2)
			r.free(h, held)
			var hasty <-chan result
			if !alone {
				hasty = r.line(r.Context(), h, wanted("hasty", 0))
			}
			time.Sleep(time.Second)
			r.waits(next)
			if !alone {
				r.waits(hasty)
			}
			time.Sleep(time.Second / 2)
			got := r.now(next)
			r.must(got.err)
			if got.at != 2*time.Second {
				t.Errorf("granted at %v, want it with the second answer", got.at)
			}
			if alone {
				return
			}
			if told := r.wantHeld(r.now(hasty).err); told.Token != got.lease.Token {
				t.Errorf("told of token %d, which was released; held is %d", told.Token, got.lease.Token)
			}
		})
	}
}

// TestOldAnswerIsNoNews: the answer that the lock is held was under way for longer
// than that lease had left. Who asked after its end is not told it.
func TestOldAnswerIsNoNews(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.plain()
		short := wanted("holder", 0)
		short.TTL = time.Second
		_, err := h.Acquire(r.Context(), short)
		r.must(err)
		h.slowAcquires(3 * time.Second)
		next := r.line(r.Context(), h, wanted("next", -1))
		time.Sleep(2 * time.Second) // the lease has ended
		hasty := r.line(r.Context(), h, wanted("hasty", 0))
		time.Sleep(10 * time.Second)
		got := r.now(next)
		r.must(got.err)
		if got.at != 6*time.Second {
			t.Errorf("granted at %v, want it with the second answer", got.at)
		}
		var told *lock.HeldError
		if err := r.now(hasty).err; !errors.As(err, &told) || told.Token != got.lease.Token {
			t.Errorf("told is %v; held is token %d", err, got.lease.Token)
		}
	})
}

// TestReleasesDoNotHeatUpTheLine: news that keep coming have the store asked once
// each.
func TestReleasesDoNotHeatUpTheLine(t *testing.T) {
	bubble(t, func(r *rig) {
		h, other := r.plain(), r.plain()
		r.take(other, "holder")
		h.slowAcquires(100 * time.Millisecond)
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		r.line(ctx, h, wanted("next", -1))
		before := h.calls.Load()
		const news = 20
		for range news {
			time.Sleep(10 * time.Millisecond)
			h.Wake(tenant, key)
		}
		time.Sleep(200 * time.Millisecond)
		if n := h.calls.Load() - before; n > news/4 {
			t.Errorf("the store was asked %d times in 400 ms", n)
		}
	})
}
