package generator

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// notified begins a request that has to wait, and returns it and how often its
// end was told of.
func notified(t *testing.T, r *rig, req Request) (*Pending, *atomic.Int32) {
	t.Helper()
	ranges, p, err := r.Start(0, req, nil)
	if p == nil {
		t.Fatalf("it need not wait: %v, %v", ranges, err)
	}
	calls := new(atomic.Int32)
	p.Notify(func() { calls.Add(1) })
	if n := calls.Load(); n != 0 {
		t.Fatal("told before the end")
	}
	return p, calls
}

// ended checks that the end has been told of, once and only once.
func ended(t *testing.T, r *rig, calls *atomic.Int32) {
	t.Helper()
	synctest.Wait()
	if n := calls.Load(); n != 1 {
		t.Errorf("told %d times", n)
	}
	time.Sleep(2 * time.Hour) // any other event
	synctest.Wait()
	if n := calls.Load(); n != 1 {
		t.Errorf("told %d times in the end", n)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.q.waiting) > 0 {
		t.Errorf("%d are left in the queue", len(r.q.waiting))
	}
}

func count(ranges []Range) (n int64) {
	for _, r := range ranges {
		n += r.Count
	}
	return n
}

func TestNotifyOfBeingServed(t *testing.T) {
	onLease(t, 200, func(t *testing.T, r *rig) {
		p, calls := notified(t, r, Request{Count: 600, Timeout: time.Hour})
		time.Sleep(10 * time.Millisecond)
		ended(t, r, calls)
		ranges, err := p.Result()
		if err != nil || count(ranges) != 600 {
			t.Errorf("%v, %v", ranges, err)
		}
	})
}

// The end of a request that has ended already is told at once.
func TestNotifyAfterTheEnd(t *testing.T) {
	onLease(t, 256, func(t *testing.T, r *rig) {
		_, p, _ := r.Start(0, Request{Count: 1, Timeout: time.Hour}, nil)
		time.Sleep(10 * time.Millisecond)
		calls := new(atomic.Int32)
		p.Notify(func() { calls.Add(1) })
		if n := calls.Load(); n != 1 {
			t.Errorf("told %d times", n)
		}
		ended(t, r, calls)
		if ranges, err := p.Result(); err != nil || count(ranges) != 1 {
			t.Errorf("%v, %v", ranges, err)
		}
	})
}

// The timeout counts from the Start, not from when the caller asked to be told.
func TestNotifyOfTheTimeout(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, r *rig) {
		r.grant(7)
		r.clock.offset.Add(-int64(3 * time.Second)) // within max_backward
		r.next(t, 1)
		r.clock.offset.Add(-int64(3 * time.Second))
		r.next(t, 255)
		began := time.Now()
		_, p, _ := r.Start(0, Request{Count: 1, Timeout: 50 * time.Millisecond}, nil)
		time.Sleep(20 * time.Millisecond)
		told := make(chan time.Duration, 2)
		p.Notify(func() { told <- time.Since(began) })
		if took := <-told; took != 50*time.Millisecond {
			t.Errorf("told after %v", took)
		}
		var timeout *TimeoutError
		if ranges, err := p.Result(); !errors.As(err, &timeout) || timeout.Waited != 50*time.Millisecond || timeout.For != WaitClock || ranges != nil {
			t.Errorf("%v, %v", ranges, err)
		}
		time.Sleep(10 * time.Second)
		if len(told) != 0 {
			t.Error("told twice")
		}
		if got := r.next(t, 256); len(got) != 256 {
			t.Error("the clock has come, and the IDs have not")
		}
	})
}

func TestCancel(t *testing.T) {
	onLease(t, 200, func(t *testing.T, r *rig) {
		p, calls := notified(t, r, Request{Count: 100, Timeout: time.Hour}) // it has the 56 that were left
		behind, behindCalls := notified(t, r, Request{Count: 1, Timeout: time.Hour})
		gone := errors.New("gone")
		p.Cancel(gone)
		p.Cancel(errors.New("once more"))
		if ranges, err := p.Result(); !errors.Is(err, gone) || ranges != nil {
			t.Errorf("%v, %v", ranges, err)
		}
		// The IDs that it did not get are for others.
		time.Sleep(time.Millisecond)
		synctest.Wait()
		ids := r.next(t, 255)
		if made := r.Stats().Issued[Regular]; made != 256+256 {
			t.Errorf("%d IDs were made for 512 requests", made)
		}
		if ranges, err := behind.Result(); err != nil || count(ranges) != 1 || ranges[0].Start >= ids[0] {
			t.Errorf("%v, %v", ranges, err)
		}
		// A request that is served cannot be cancelled.
		behind.Cancel(gone)
		if _, err := behind.Result(); err != nil {
			t.Error(err)
		}
		ended(t, r, calls)
		ended(t, r, behindCalls)
	})
}

// A caller may still Wait for it, as when a connection is handed over.
func TestWaitInsteadOfResult(t *testing.T) {
	onLease(t, 256, func(t *testing.T, r *rig) {
		p, calls := notified(t, r, Request{Count: 300, Timeout: time.Hour})
		if ranges, err := p.Wait(context.Background()); err != nil || count(ranges) != 300 {
			t.Errorf("%v, %v", ranges, err)
		}
		ended(t, r, calls)
	})
	onLease(t, 256, func(t *testing.T, r *rig) {
		gone := errors.New("gone")
		p, _ := notified(t, r, Request{Count: 300, Timeout: time.Hour})
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(gone)
		if _, err := p.Wait(ctx); !errors.Is(err, gone) {
			t.Error(err)
		}
		time.Sleep(2 * time.Hour)
		p.Cancel(errors.New("once more"))
		r.next(t, 256)
	})
}
