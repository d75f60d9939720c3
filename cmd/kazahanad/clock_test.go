package main

import (
	"strconv"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/wire"
)

// TestClockJumps moves the clock under a running daemon.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.LaunchShifted(0, "--max-backward", "2s")
	d.AwaitReady()
	c := s.Dial()
	last := c.ID()
	next := func(what string) {
		t.Helper()
		id := c.ID()
		if id <= last {
			t.Errorf("%s: %d came after %d", what, id, last)
		}
		last = id
	}

	// The first of them may be the rest of the last millisecond; the rest must wait for the
	// clock.
	d.Set(-200 * time.Millisecond)
	batch := c.IDs(600)
	if first := snowflake.ID(batch[0]); first <= last {
		t.Errorf("a little back: %d came after %d", first, last)
	}
	last = snowflake.ID(batch[len(batch)-1])
	d.Set(-time.Hour)
	refusal := c.Refused(wire.CodeClockBackward)
	behind, _ := refusal.Detail("backward_ms")
	if ms, err := strconv.ParseInt(behind, 10, 64); err != nil || ms > time.Hour.Milliseconds() || ms < (time.Hour-await.Patience).Milliseconds() {
		t.Errorf("an hour back: %v", refusal)
	}
	s.Kazahanad("id").Fails(t, exitFailure, "CLOCK_BACKWARD", "backward_ms=", "limit_ms=2000", "NTP")
	s.Kazahanad("health").Fails(t, exitFailure, "cannot issue IDs", "clock")
	d.Set(0)
	next("right again")

	d.Set(time.Hour)
	next("an hour ahead")
	if ahead := time.Duration(testkit.UnixMS(last)-time.Now().UnixMilli()) * time.Millisecond; ahead > await.Patience {
		t.Errorf("one reading of a wrong clock dated an ID %v ahead", ahead)
	}
	if off := c.Status().ClockOffMS; off < (time.Hour - await.Patience).Milliseconds() {
		t.Errorf("status says that the clock is %d ms off", off)
	}
	d.Kill()
	d.Instance = s.Start()
	c = s.Dial()
	next("after a restart with the right clock")
	if n := c.Status().Services[0].ClockBackward; n != 0 {
		t.Errorf("the restart found the clock behind %d times", n)
	}
}
