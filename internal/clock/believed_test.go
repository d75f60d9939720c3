package clock

import (
	"slices"
	"testing"
	"time"
)

const (
	start int64 = 1_800_000_000_000
	hold        = 60 * time.Second
)

type rig struct {
	*Fake
	*Believed
	events []EventKind
}

func newRig(t *testing.T, wallMS int64, cfg Config) *rig {
	t.Helper()
	cfg.MaxForward = time.Second
	r := &rig{Fake: NewFake(wallMS)}
	cfg.OnEvent = func(e Event) { r.events = append(r.events, e.Kind) }
	r.Believed = NewBelieved(r.Fake, cfg)
	return r
}

// expect holds the believed time, in ms after start, and the events so far.
func (r *rig) expect(t *testing.T, what string, wantMS int64, events ...EventKind) {
	t.Helper()
	if got := r.NowMS() - start; got != wantMS {
		t.Errorf("%s: believed start%+d ms, want start%+d ms", what, got, wantMS)
	}
	if !slices.Equal(r.events, events) {
		t.Errorf("%s: events %v, want %v", what, r.events, events)
	}
}

func TestFollowsTheWallClock(t *testing.T) {
	r := newRig(t, start, Config{Hold: hold})
	for i := range int64(5000) {
		r.expect(t, "ticking", i)
		r.Advance(time.Millisecond)
	}
	r.Jump(900 * time.Millisecond)
	r.expect(t, "a small step ahead", 5900)
	r.Jump(-900 * time.Millisecond)
	r.expect(t, "a small step back", 5000)
}

func TestOneReadingAnHourAheadCostsNothing(t *testing.T) {
	r := newRig(t, start, Config{Hold: hold})
	r.expect(t, "before", 0)
	r.Advance(10 * time.Millisecond)
	r.Jump(time.Hour)
	r.expect(t, "an hour ahead", 10, ForwardDisbelieved)
	r.Jump(-time.Hour)
	r.Advance(time.Millisecond)
	r.expect(t, "after", 11, ForwardDisbelieved, ForwardReturned)
	if r.Astray() != 0 {
		t.Errorf("still astray by %v", r.Astray())
	}
}

func TestOneReadingAnHourBehindCostsNothing(t *testing.T) {
	r := newRig(t, start, Config{Hold: hold})
	r.expect(t, "before", 0)
	r.Jump(-time.Hour)
	r.expect(t, "an hour behind is told as it is", -3_600_000, BackwardSeen)
	r.Jump(time.Hour)
	r.Advance(time.Millisecond)
	r.expect(t, "after", 1, BackwardSeen, BackwardReturned)
}

func TestLastingForwardJumpIsAcceptedAfterHold(t *testing.T) {
	r := newRig(t, start, Config{Hold: hold})
	r.expect(t, "before", 0)
	r.Jump(time.Hour)
	r.expect(t, "jump", 0, ForwardDisbelieved)
	r.Advance(59_999 * time.Millisecond)
	r.expect(t, "just before hold", 59_999, ForwardDisbelieved)
	if got := r.Astray(); got != time.Hour {
		t.Errorf("astray by %v, want 1h", got)
	}
	r.Advance(time.Millisecond)
	r.expect(t, "hold", 3_660_000, ForwardDisbelieved, ForwardAccepted)
	r.Advance(time.Second)
	r.expect(t, "after", 3_661_000, ForwardDisbelieved, ForwardAccepted)
}

// TestWithoutHold: a jump is accepted at once, and told.
func TestWithoutHold(t *testing.T) {
	r := newRig(t, start, Config{})
	r.expect(t, "before", 0)
	r.Jump(time.Hour)
	r.expect(t, "ahead", 3_600_000, ForwardAccepted)
	r.Jump(-2 * time.Hour)
	r.expect(t, "back", -3_600_000, ForwardAccepted, BackwardAccepted)
}

func TestHoldStartsAnewAfterAReturn(t *testing.T) {
	r := newRig(t, start, Config{Hold: hold})
	r.expect(t, "before", 0)
	r.Jump(time.Hour)
	r.expect(t, "jump", 0, ForwardDisbelieved)
	r.Advance(50 * time.Second)
	r.Jump(-time.Hour)
	r.expect(t, "return", 50_000, ForwardDisbelieved, ForwardReturned)
	r.Jump(time.Hour)
	r.expect(t, "second jump", 50_000, ForwardDisbelieved, ForwardReturned, ForwardDisbelieved)
	r.Advance(50 * time.Second)
	r.expect(t, "its own hold counts", 100_000, ForwardDisbelieved, ForwardReturned, ForwardDisbelieved)
}

func TestLastingBackwardJumpBecomesTheCourse(t *testing.T) {
	r := newRig(t, start, Config{Hold: hold})
	r.expect(t, "before", 0)
	r.Jump(-time.Hour)
	r.expect(t, "jump", -3_600_000, BackwardSeen)
	r.Advance(60 * time.Second)
	r.expect(t, "hold", -3_540_000, BackwardSeen, BackwardAccepted)
	// The course of an hour ago is now an hour ahead.
	r.Jump(time.Hour)
	r.expect(t, "ahead again", -3_540_000, BackwardSeen, BackwardAccepted, ForwardDisbelieved)
}

func TestSuspendIsElapsedTime(t *testing.T) {
	r := newRig(t, start, Config{Hold: hold})
	r.expect(t, "before", 0)
	r.Advance(8 * time.Hour) // both the wall clock and CLOCK_BOOTTIME go on
	r.expect(t, "after a night of sleep", 8*3_600_000)
}

func TestProviderConfirmsAForwardJump(t *testing.T) {
	r := newRig(t, start, Config{Hold: hold})
	r.expect(t, "before", 0)
	r.Jump(time.Hour)
	r.expect(t, "jump", 0, ForwardDisbelieved)
	r.Confirm(start + 10)
	r.expect(t, "a provider that agrees with the course", 0, ForwardDisbelieved)
	r.Confirm(start + 3_600_000 + 300)
	r.expect(t, "a provider that agrees with the wall", 3_600_000, ForwardDisbelieved, ForwardConfirmed)
}

func TestWrongClockAtBoot(t *testing.T) {
	t.Run("behind the floor, then set right", func(t *testing.T) {
		r := newRig(t, 1000, Config{Hold: hold, FloorMS: start})
		if got := r.NowMS(); got != 1000 {
			t.Errorf("believed %d, want the reading itself", got)
		}
		r.Advance(2 * time.Second)
		r.Jump(time.Duration(start-3000) * time.Millisecond)
		r.expect(t, "set by NTP: believed at once", 0)
	})
	t.Run("behind, without a floor, then set right", func(t *testing.T) {
		r := newRig(t, start-86_400_000, Config{Hold: hold})
		r.expect(t, "boot", -86_400_000)
		r.Jump(24 * time.Hour)
		r.expect(t, "not believed yet", -86_400_000, ForwardDisbelieved)
		r.Advance(hold)
		r.expect(t, "believed after hold", int64(hold/time.Millisecond), ForwardDisbelieved, ForwardAccepted)
	})
	t.Run("ahead, then set right", func(t *testing.T) {
		r := newRig(t, start+3_600_000, Config{Hold: hold, FloorMS: start})
		r.expect(t, "boot", 3_600_000)
		r.Jump(-time.Hour)
		r.expect(t, "the generator's matter", 0, BackwardSeen)
	})
}

func TestSystemClock(t *testing.T) {
	var s System
	a, b := s.Boot(), s.Boot()
	if b < a || a <= 0 {
		t.Errorf("the clock that counts suspend went from %v to %v", a, b)
	}
	if got := time.Unix(0, s.Wall()); time.Since(got).Abs() > time.Minute {
		t.Errorf("the wall clock shows %v", got)
	}
}

func BenchmarkNow(b *testing.B) {
	c := NewBelieved(System{}, Config{MaxForward: time.Second, Hold: hold})
	b.ReportAllocs()
	for b.Loop() {
		c.NowNS()
	}
}
