package lock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kazahana/kazahana/internal/lock"
)

func TestFirstComeFirstServed(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		held := r.take(h, "first")
		var line []<-chan result
		for i := range 5 {
			line = append(line, r.line(r.Context(), h, wanted(fmt.Sprintf("waiter-%d", i), -1)))
		}
		time.Sleep(time.Second)
		for i, c := range line {
			for _, later := range line[i:] {
				r.waits(later)
			}
			before := r.elapsed()
			r.free(h, held)
			got := r.now(c)
			r.must(got.err)
			if got.at != before {
				t.Errorf("handing over took %v", got.at-before)
			}
			if got.lease.Token != held.Token+1 {
				t.Errorf("token %d after %d", got.lease.Token, held.Token)
			}
			held = got.lease
		}
	})
}

func TestAnswerAtOnce(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.plain()
		held := r.take(h, "holder")
		first := r.line(r.Context(), h, wanted("patient", -1))
		calls := h.calls.Load()
		time.Sleep(2 * time.Millisecond)
		_, err := h.Acquire(r.Context(), wanted("hasty", 0))
		told := r.wantHeld(err)
		if told.Owner != "holder" || told.Token != held.Token || told.RemainingMS != ttl.Milliseconds()-2 {
			t.Errorf("told is %+v", told)
		}
		if h.calls.Load() != calls {
			t.Errorf("the store was asked for somebody who is not the first in line")
		}
		r.waits(first)
		r.free(h, held)
		r.must(r.now(first).err)
	})
}

// TestHastyDoesNotOvertake: the lock is free, but the first in line does not know
// yet.
func TestHastyDoesNotOvertake(t *testing.T) {
	bubble(t, func(r *rig) {
		h, other := r.plain(), r.plain()
		held := r.take(other, "elsewhere")
		first := r.line(r.Context(), h, wanted("patient", -1))
		time.Sleep(5 * time.Second)
		r.free(other, held) // nothing tells h
		_, err := h.Acquire(r.Context(), wanted("hasty", 0))
		r.wantHeld(err)
		time.Sleep(time.Second)
		r.must(r.now(first).err)
	})
}

func TestWaitEnds(t *testing.T) {
	for name, connect := range map[string]func(*rig) *host{"notified": (*rig).host, "plain": (*rig).plain} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				h := connect(r)
				r.take(h, "holder")
				first := r.line(r.Context(), h, wanted("a", 7*time.Second))
				second := r.line(r.Context(), h, wanted("b", 3*time.Second))
				time.Sleep(10 * time.Second)
				for c, want := range map[<-chan result]time.Duration{first: 7 * time.Second, second: 3 * time.Second} {
					got := r.now(c)
					held := r.wantHeld(got.err)
					if left := (ttl - want).Milliseconds(); got.at != want || held.RemainingMS < left || held.RemainingMS > left+1 {
						t.Errorf("the wait of %v ended at %v with %d ms left, want %d", want, got.at, held.RemainingMS, left)
					}
				}
			})
		})
	}
}

// TestEndOfAnotherHostsLease: the holder is gone, and nothing tells of the end.
func TestEndOfAnotherHostsLease(t *testing.T) {
	for name, connect := range map[string]func(*rig) *host{"notified": (*rig).host, "plain": (*rig).plain} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.take(r.host(), "crashed")
				c := r.line(r.Context(), connect(r), wanted("next", -1))
				time.Sleep(ttl + 2*lock.Spread)
				got := r.now(c)
				r.must(got.err)
				if got.at < ttl || got.at > ttl+2*lock.Spread {
					t.Errorf("acquired at %v, the lease ended at %v", got.at, ttl)
				}
			})
		})
	}
}

func TestReleaseByAnotherHost(t *testing.T) {
	for name, test := range map[string]struct {
		connect func(*rig) *host
		within  time.Duration
	}{"notified": {(*rig).host, 0}, "plain": {(*rig).plain, time.Second}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				other := r.plain()
				held := r.take(other, "elsewhere")
				c := r.line(r.Context(), test.connect(r), wanted("next", -1))
				time.Sleep(10 * time.Second)
				r.waits(c)
				r.free(other, held)
				time.Sleep(test.within)
				got := r.now(c)
				r.must(got.err)
				if late := got.at - 10*time.Second; late > test.within {
					t.Errorf("acquired %v after the release", late)
				}
			})
		})
	}
}

func TestNoHotPolling(t *testing.T) {
	for name, test := range map[string]struct {
		connect func(*rig) *host
		most    int64 // in a minute, for however many who wait
	}{"notified": {(*rig).host, 16}, "plain": {(*rig).plain, 130}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				holder := r.host()
				r.hold(holder, wanted("holder", 0))
				h := test.connect(r)
				ctx, cancel := context.WithCancel(r.Context())
				for i := range 50 {
					r.line(ctx, h, wanted(fmt.Sprintf("waiter-%d", i), -1))
				}
				time.Sleep(time.Minute)
				if got := h.calls.Load(); got > test.most || got == 0 {
					t.Errorf("the store was asked %d times in a minute, want at most %d", got, test.most)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}

func TestLeavingTheLine(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		held := r.take(h, "holder")
		why := errors.New("the connection was closed")
		var cancels []context.CancelCauseFunc
		var line []<-chan result
		for i := range 3 {
			ctx, cancel := context.WithCancelCause(r.Context())
			cancels = append(cancels, cancel)
			line = append(line, r.line(ctx, h, wanted(fmt.Sprintf("waiter-%d", i), -1)))
		}
		for _, i := range []int{1, 0} {
			cancels[i](why)
			r.want(r.now(line[i]).err, why)
		}
		late, cancel := context.WithCancelCause(r.Context())
		cancel(why)
		_, err := h.Acquire(late, wanted("late", -1))
		r.want(err, why)
		r.free(h, held)
		got := r.now(line[2])
		r.must(got.err)
		cancels[2](why)
		if l := r.state(); l.State != lock.Active || l.LeaseID != got.lease.LeaseID {
			t.Errorf("the lock is %+v after its holder's request has ended, want it held", l)
		}
	})
}

// TestGrantToOneWhoIsGone: the answer comes when nobody waits for it any more. The
// lease is released, unless the same request came again, which then has it.
func TestGrantToOneWhoIsGone(t *testing.T) {
	for _, askedAgain := range []bool{false, true} {
		bubble(t, func(r *rig) {
			h := r.plain()
			h.slow(time.Second)
			ctx, cancel := context.WithCancel(r.Context())
			gone := r.line(ctx, h, again("gone", -1))
			cancel()
			r.want(r.now(gone).err, context.Canceled)
			if l := r.state(); l.State != lock.Active {
				t.Fatalf("the test is wrong: the lock is %+v", l)
			}
			wanted := wanted("next", -1)
			if askedAgain {
				wanted = again("gone", -1)
			}
			next := r.line(r.Context(), h, wanted)
			time.Sleep(10 * time.Second)
			got := r.now(next)
			r.must(got.err)
			if l := r.state(); l.LeaseID != got.lease.LeaseID || l.State != lock.Active || got.lease.Repeated != askedAgain {
				t.Errorf("asked again %v: the lock is %+v, the answer %+v", askedAgain, l, got.lease)
			}
		})
	}
}

// TestRepeatedGrantToOneWhoIsGone: the holder asked again on another connection,
// which is closed before the answer comes. It still holds the lock by the first.
func TestRepeatedGrantToOneWhoIsGone(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.plain()
		want := wanted("holder", -1)
		want.RequestID = "again"
		first, err := h.Acquire(r.Context(), want)
		r.must(err)
		h.slow(time.Second)
		ctx, cancel := context.WithCancel(r.Context())
		again := r.line(ctx, h, want)
		cancel()
		r.want(r.now(again).err, context.Canceled)
		time.Sleep(10 * time.Second)
		if l := r.state(); l.LeaseID != first.LeaseID || l.State != lock.Active {
			t.Errorf("the lock is %+v, want %+v", l, first)
		}
	})
}

// TestReleaseBeforeTheSubscription: the lock is released while the store is being
// asked to tell of that.
func TestReleaseBeforeTheSubscription(t *testing.T) {
	bubble(t, func(r *rig) {
		other, h := r.plain(), r.host()
		h.subscribing = time.Second
		held := r.take(other, "elsewhere")
		c := r.line(r.Context(), h, wanted("next", -1))
		time.Sleep(500 * time.Millisecond)
		r.free(other, held)
		time.Sleep(time.Second)
		r.must(r.now(c).err)
	})
}

// TestElsewhere: who may ask again on another host keeps what it was granted.
func TestElsewhere(t *testing.T) {
	bubble(t, func(r *rig) {
		h, other := r.plain(), r.plain()
		h.slow(time.Second)
		ctx, cancel := context.WithCancel(r.Context())
		want := wanted("moved", -1)
		want.RequestID, want.Elsewhere = "again", true
		gone := r.line(ctx, h, want)
		cancel()
		r.want(r.now(gone).err, context.Canceled)
		l, err := other.Acquire(r.Context(), want)
		r.must(err)
		time.Sleep(10 * time.Second)
		if got := r.state(); !l.Repeated || got.LeaseID != l.LeaseID || got.State != lock.Active {
			t.Errorf("the lock is %+v, want %+v", got, l)
		}
	})
}

// TestOutcomeUnknown: the store did it, and its answer was lost.
func TestOutcomeUnknown(t *testing.T) {
	t.Run("nobody asks again", func(t *testing.T) {
		bubble(t, func(r *rig) {
			h := r.plain()
			h.deaf()
			_, err := h.Acquire(r.Context(), wanted("once", 0))
			r.want(err, errDown)
			if l := r.state(); l.State != lock.Active {
				t.Fatalf("the test is wrong: the lock is %+v", l)
			}
			h.up()
			time.Sleep(3 * time.Second)
			if l := r.state(); l.State != lock.Released {
				t.Errorf("the lock is %+v, want it released", l)
			}
		})
	})
	t.Run("the caller asks again", func(t *testing.T) {
		bubble(t, func(r *rig) {
			h := r.plain()
			h.deaf()
			want := wanted("twice", 0)
			want.RequestID = "again"
			_, err := h.Acquire(r.Context(), want)
			r.want(err, errDown)
			h.up()
			time.Sleep(3 * time.Second)
			l, err := h.Acquire(r.Context(), want)
			r.must(err)
			if !l.Repeated || l.Token != 1 || l.RemainingMS != (ttl-3*time.Second).Milliseconds()-1 {
				t.Errorf("asked again, it answers %+v", l)
			}
		})
	})
	t.Run("the host asks again", func(t *testing.T) {
		bubble(t, func(r *rig) {
			h := r.plain()
			h.deaf()
			c := r.line(r.Context(), h, wanted("patient", time.Minute))
			time.Sleep(10 * time.Second)
			r.waits(c)
			h.up()
			time.Sleep(3 * time.Second)
			got := r.now(c)
			r.must(got.err)
			if got.lease.Token != 1 {
				t.Errorf("the lease is %+v, want the one that was granted first", got.lease)
			}
		})
	})
	t.Run("the caller gives up", func(t *testing.T) {
		bubble(t, func(r *rig) {
			h := r.plain()
			h.deaf()
			ctx, cancel := context.WithCancel(r.Context())
			c := r.line(ctx, h, wanted("gone", -1))
			time.Sleep(time.Second)
			cancel()
			r.want(r.now(c).err, context.Canceled)
			h.up()
			time.Sleep(3 * time.Second)
			if l := r.state(); l.State != lock.Released {
				t.Errorf("the lock is %+v, want it released", l)
			}
		})
	})
}

func TestStoreDownWhileWaiting(t *testing.T) {
	bubble(t, func(r *rig) {
		h, other := r.plain(), r.plain()
		held := r.take(other, "elsewhere")
		long, short := r.line(r.Context(), h, wanted("long", time.Hour)), r.line(r.Context(), h, wanted("short", 10*time.Second))
		h.down()
		calls := h.calls.Load()
		time.Sleep(11 * time.Second)
		r.wantOpen(r.now(short).err)
		if n := h.calls.Load() - calls; n < 3 || n > 40 {
			t.Errorf("a store that is down was asked %d times in 11 s", n)
		}
		r.free(other, held)
		h.up()
		time.Sleep(3 * time.Second)
		r.must(r.now(long).err)
	})
}

// TestWaitEndsDuringAnOutage: nothing is known, and the store is asked less and
// less often; the wait ends in time all the same.
func TestWaitEndsDuringAnOutage(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.plain()
		h.down()
		first := r.line(r.Context(), h, wanted("first", 11*time.Second))
		second := r.line(r.Context(), h, wanted("second", 10*time.Second))
		time.Sleep(12 * time.Second)
		for c, want := range map[<-chan result]time.Duration{first: 11 * time.Second, second: 10 * time.Second} {
			got := r.now(c)
			r.want(got.err, errDown)
			if got.at != want {
				t.Errorf("the wait of %v ended at %v", want, got.at)
			}
		}
	})
}

// TestGrantToOneWhoIsGoneAfterALoss: the first answer was lost, the second came too
// late.
func TestGrantToOneWhoIsGoneAfterALoss(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.plain()
		h.deaf()
		ctx, cancel := context.WithCancel(r.Context())
		c := r.line(ctx, h, wanted("gone", -1))
		h.slow(time.Second)
		time.Sleep(100 * time.Millisecond)
		cancel()
		r.want(r.now(c).err, context.Canceled)
		time.Sleep(10 * time.Second)
		if l := r.state(); l.State != lock.Released {
			t.Errorf("the lock is %+v, want it released", l)
		}
	})
}

// wantOpen checks for an error that tells why nothing is known, or that somebody
// held the lock when last something was.
func (r *rig) wantOpen(err error) {
	r.Helper()
	var held *lock.HeldError
	if !errors.Is(err, errDown) && !errors.As(err, &held) {
		r.Fatalf("error is %v", err)
	}
}

// TestHolderAsksAgain: its first answer was lost on the way to it, and others
// wait for the lock.
func TestHolderAsksAgain(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Second, -1} {
		t.Run(fmt.Sprint(wait), func(t *testing.T) {
			bubble(t, func(r *rig) {
				h := r.plain()
				want := wanted("holder", wait)
				want.RequestID = "again"
				first, err := h.Acquire(r.Context(), want)
				r.must(err)
				waiter := r.line(r.Context(), h, wanted("waiter", -1))
				again := r.now(r.line(r.Context(), h, want))
				r.must(again.err)
				if !again.lease.Repeated || again.lease.LeaseID != first.LeaseID {
					t.Errorf("asked again, it answers %+v, want %+v", again.lease, first)
				}
				r.waits(waiter)
				r.free(h, first)
				r.must(r.now(waiter).err)
			})
		})
	}
}

// TestRemainingIsOfNow: the answer took its time.
func TestRemainingIsOfNow(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.plain()
		h.slow(2 * time.Second)
		l := r.take(h, "slow")
		if want := (ttl - 2*time.Second).Milliseconds() - 1; l.RemainingMS != want {
			t.Errorf("%d ms remain, want %d", l.RemainingMS, want)
		}
	})
}

func TestFenceWhileWaiting(t *testing.T) {
	bubble(t, func(r *rig) {
		r.records.forget("second", 10*time.Second)
		h := r.plain()
		_, err := h.Acquire(r.Context(), wanted("hasty", 0))
		var fenced *lock.FencedError
		if !errors.As(err, &fenced) || fenced.RemainingMS != 10_000 {
			t.Errorf("error is %v, want a FencedError for 10 s", err)
		}
		c := r.line(r.Context(), h, wanted("patient", -1))
		time.Sleep(10*time.Second + 100*time.Millisecond)
		got := r.now(c)
		r.must(got.err)
		if got.at < 10*time.Second {
			t.Errorf("acquired at %v, in the fence", got.at)
		}
	})
}

func TestInvalidIsAnsweredAtOnce(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.host()
		want := wanted("a", -1)
		want.TTL = 48 * time.Hour
		_, err := h.Acquire(r.Context(), want)
		r.want(err, lock.ErrInvalid)
		_, err = h.Change(r.Context(), lock.Request{Op: lock.Acquire, Tenant: tenant, Key: key, Owner: "a", TTLMS: 1000, LeaseID: lock.NewLeaseID()})
		r.want(err, lock.ErrInvalid)
		if n := h.calls.Load(); n != 0 {
			t.Errorf("the store was asked %d times", n)
		}
	})
}

func TestClose(t *testing.T) {
	t.Run("ends the waits", func(t *testing.T) {
		bubble(t, func(r *rig) {
			h, other := r.host(), r.host()
			r.take(other, "elsewhere")
			a, b := r.line(r.Context(), h, wanted("a", -1)), r.line(r.Context(), h, wanted("b", -1))
			r.must(h.Close(r.Context()))
			r.want(r.now(a).err, lock.ErrClosed)
			r.want(r.now(b).err, lock.ErrClosed)
			_, err := h.Acquire(r.Context(), wanted("late", 0))
			r.want(err, lock.ErrClosed)
		})
	})
	t.Run("releases what is held", func(t *testing.T) {
		bubble(t, func(r *rig) {
			h := r.host()
			_, lost := r.hold(h, wanted("holder", 0))
			r.must(h.Close(r.Context()))
			if l := r.state(); l.State != lock.Released {
				t.Errorf("the lock is %+v, want it released", l)
			}
			if told := lost.seen(); len(told) != 0 {
				t.Errorf("the holder was told of a loss: %+v", told)
			}
		})
	})
	t.Run("clears up", func(t *testing.T) {
		bubble(t, func(r *rig) {
			h := r.plain()
			h.slow(time.Second)
			c := r.line(r.Context(), h, wanted("open", -1))
			r.must(h.Close(r.Context()))
			r.want(r.now(c).err, lock.ErrClosed)
			if l := r.state(); l.State != lock.Released {
				t.Errorf("the lock is %+v, want it released", l)
			}
		})
	})
	t.Run("does not wait for ever", func(t *testing.T) {
		bubble(t, func(r *rig) {
			h := r.host()
			r.hold(h, wanted("holder", 0))
			h.down()
			ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
			defer cancel()
			r.want(h.Close(ctx), context.DeadlineExceeded)
			if r.elapsed() != 5*time.Second {
				t.Errorf("Close took %v", r.elapsed())
			}
		})
	})
}

// TestReleaseOfWhatWasGrantedLate: the request took longer than its term lasts, and
// its answer was lost. What it was granted lives on from then, and is released
// however often that fails first.
func TestReleaseOfWhatWasGrantedLate(t *testing.T) {
	bubble(t, func(r *rig) {
		h := r.plain()
		h.meet(func(q lock.Request) error {
			if q.Op == lock.Acquire {
				time.Sleep(callTimeout - 100*time.Millisecond)
			} else if r.elapsed() < callTimeout+50*time.Millisecond {
				return errDown
			}
			return nil
		}, func(q lock.Request) error {
			if q.Op == lock.Acquire {
				return errDown
			}
			return nil
		})
		ctx, cancel := context.WithCancel(r.Context())
		short := wanted("gone", -1)
		short.TTL = time.Second
		gone := r.line(ctx, h, short)
		cancel()
		r.want(r.now(gone).err, context.Canceled)
		time.Sleep(callTimeout + 800*time.Millisecond)
		if l := r.state(); l.State != lock.Released {
			t.Errorf("the lock is %+v, want it released", l)
		}
	})
}
