package clock

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fakeMonotonic is a Fake with a monotonic clock, and with what can happen
// while the wall clock is read.
type fakeMonotonic struct {
	*Fake
	asleep    atomic.Int64 // how long the machine was suspended: its monotonic clock stood still
	walls     atomic.Int64 // how often the wall clock was read
	meanwhile func(before bool)
	preempt   func() // once, after the monotonic clock has been read
}

func (f *fakeMonotonic) Monotonic() time.Duration {
	now := f.Fake.Boot() - time.Duration(f.asleep.Load())
	if preempt := f.preempt; preempt != nil {
		f.preempt = nil
		preempt()
	}
	return now
}

func (f *fakeMonotonic) Wall() int64 {
	f.walls.Add(1)
	if f.meanwhile != nil {
		f.meanwhile(true)
		defer f.meanwhile(false)
	}
	return f.Fake.Wall()
}

func (f *fakeMonotonic) suspend(d time.Duration) {
	f.asleep.Add(int64(d))
	f.Advance(d)
}

func newMonotonic(cfg Config) (*Believed, *fakeMonotonic) {
	f := &fakeMonotonic{Fake: NewFake(start)}
	cfg.MaxForward = time.Second
	return NewBelieved(f, cfg), f
}

func expectAt(t *testing.T, what string, b *Believed, want time.Duration) {
	t.Helper()
	if got := time.Duration(b.NowNS() - start*int64(time.Millisecond)); got != want {
		t.Errorf("%s: believed start%+v, want start%+v", what, got, want)
	}
}

// TestMonotonicStandsIn: for lookEvery after each look, the wall clock is not
// read, and its steps are not seen.
func TestMonotonicStandsIn(t *testing.T) {
	for _, step := range []time.Duration{500 * time.Millisecond, -500 * time.Millisecond, -time.Hour} {
		b, f := newMonotonic(Config{Hold: hold})
		expectAt(t, "first", b, 0)
		f.Advance(lookEvery - 1)
		f.Jump(step)
		expectAt(t, "just before the next look", b, lookEvery-1)
		if n := f.walls.Load(); n != 1 {
			t.Errorf("the wall clock was read %d times", n)
		}
		f.Advance(1)
		expectAt(t, "at the next look", b, lookEvery+step)
		f.Advance(1)
		expectAt(t, "after it", b, lookEvery+step+1)
	}
}

func TestMonotonicIsNoWayAroundDisbelief(t *testing.T) {
	var events []EventKind
	b, f := newMonotonic(Config{Hold: hold, OnEvent: func(e Event) { events = append(events, e.Kind) }})
	expectAt(t, "before", b, 0)
	f.Jump(time.Hour)
	if b.Astray() != 0 {
		t.Error("astray before anybody has looked")
	}
	expectAt(t, "between two looks", b, 0)
	for i := range time.Duration(100) {
		f.Advance(lookEvery)
		expectAt(t, "an hour ahead", b, (i+1)*lookEvery)
		f.Advance(1)
		expectAt(t, "and each reading is judged", b, (i+1)*lookEvery+1)
		f.Advance(-1)
	}
	if b.Astray() != time.Hour {
		t.Errorf("astray by %v", b.Astray())
	}
	b.Confirm(start + 3_600_000)
	expectAt(t, "confirmed", b, time.Hour+100*lookEvery)
	f.Advance(1)
	f.Jump(-time.Minute)
	expectAt(t, "between two looks again", b, time.Hour+100*lookEvery+1)
	if len(events) != 2 || events[0] != ForwardDisbelieved || events[1] != ForwardConfirmed {
		t.Errorf("events %v", events)
	}
}

// TestPreemptedReaderGetsNothingDisbelieved: with any findings of others between the steps of a
// reading.
func TestPreemptedReaderGetsNothingDisbelieved(t *testing.T) {
	b, f := newMonotonic(Config{Hold: hold})
	expectAt(t, "before", b, 0)
	f.Advance(1)
	f.preempt = func() {
		f.Advance(lookEvery)
		f.Jump(time.Hour)
		expectAt(t, "another reader", b, lookEvery+1)
	}
	expectAt(t, "the reader that was preempted", b, 1)
}

// TestBelowTheFloorNothingStandsIn: the first right reading is believed at once.
func TestBelowTheFloorNothingStandsIn(t *testing.T) {
	b, f := newMonotonic(Config{Hold: hold, FloorMS: start + 1000})
	expectAt(t, "below the floor", b, 0)
	f.Jump(time.Minute)
	expectAt(t, "set right", b, time.Minute)
}

// TestSuspendIsSeenAtTheNextLook: the monotonic clock does not count it.
func TestSuspendIsSeenAtTheNextLook(t *testing.T) {
	var events []EventKind
	b, f := newMonotonic(Config{Hold: hold, OnEvent: func(e Event) { events = append(events, e.Kind) }})
	expectAt(t, "before", b, 0)
	f.suspend(8 * time.Hour)
	expectAt(t, "just awake", b, 0)
	f.Advance(lookEvery)
	expectAt(t, "at the next look", b, 8*time.Hour+lookEvery)
	if len(events) != 0 {
		t.Errorf("events %v", events)
	}
}

// TestPauseDuringALook: a reader that is stopped for a while between the readings of two clocks
// does not move the time, neither then nor at the next look.
func TestPauseDuringALook(t *testing.T) {
	for _, before := range []bool{false, true} {
		b, f := newMonotonic(Config{Hold: hold})
		expectAt(t, "first", b, 0)
		f.Advance(lookEvery)
		f.meanwhile = func(is bool) {
			if is == before {
				f.Advance(5 * time.Millisecond)
			}
		}
		expectAt(t, "paused", b, lookEvery+5*time.Millisecond)
		f.meanwhile = nil
		f.Advance(1)
		expectAt(t, "after the pause", b, lookEvery+5*time.Millisecond+1)
		f.Advance(lookEvery)
		expectAt(t, "at the next look", b, 2*lookEvery+5*time.Millisecond+1)
	}
}

// TestTimeGoesBackOnlyWithTheWallClock: with any pauses during looks, all that the time loses is
// at most what the wall clock was set back by.
func TestTimeGoesBackOnlyWithTheWallClock(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		b, f := newMonotonic(Config{Hold: hold})
		f.meanwhile = func(bool) {
			if rnd.IntN(4) == 0 {
				f.Advance(time.Duration(rnd.IntN(3_000_000)))
			}
		}
		last, lost, setBack := b.NowNS(), int64(0), int64(0)
		for range 500 {
			f.Advance(time.Duration(rnd.IntN(60_000)))
			if rnd.IntN(20) == 0 {
				step := time.Duration(rnd.IntN(2_000_000) - 1_000_000)
				setBack += max(int64(-step), 0)
				f.Jump(step)
			}
			now := b.NowNS()
			lost += max(last-now, 0)
			if last = now; lost > setBack {
				t.Fatalf("seed %d: the time went back by %v, and the wall clock by %v", seed, time.Duration(lost), time.Duration(setBack))
			}
		}
	}
}

// TestConcurrentReaders: while the wall clock jumps ahead and returns, no reader
// sees a time that is not believed; while it does not, each sees a time that
// does not go back.
func TestConcurrentReaders(t *testing.T) {
	for _, jump := range []time.Duration{0, time.Hour} {
		b, f := newMonotonic(Config{Hold: hold})
		b.NowNS()
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for last := int64(0); ; {
					select {
					case <-stop:
						return
					default:
					}
					now := b.NowNS()
					if jump == 0 && now < last || now > (start+60_000)*int64(time.Millisecond) {
						t.Errorf("with jumps of %v: %d after %d", jump, now, last)
						return
					}
					last = now
				}
			})
		}
		for range 3000 {
			f.Advance(lookEvery / 3)
			f.Jump(jump)
			b.NowNS()
			f.Jump(-jump)
		}
		close(stop)
		wg.Wait()
	}
}

// TestSystemMonotonic: what the daemon reads is the wall clock to within the
// time that a look takes.
func TestSystemMonotonic(t *testing.T) {
	b := NewBelieved(System{}, Config{MaxForward: time.Second, Hold: hold})
	for range 10_000 {
		before := time.Now().UnixNano()
		now := b.NowNS()
		if after := time.Now().UnixNano(); now < before-int64(time.Second) || now > after+int64(time.Second) {
			t.Fatalf("believed %d between %d and %d", now, before, after)
		}
	}
}
