package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/ring"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	kills      = 50
	killLimit  = 400 * time.Millisecond // max_backward
	killFar    = time.Minute            // beyond it
	killAskers = 4
)

// life is one run of the daemon in TestKill9FiftyTimes.
type life struct {
	backward time.Duration // by which the clock is set back
}

func (l life) refused() bool { return l.backward > killLimit }

// lives mixes right clocks with such that were set back, within what
// max_backward allows and beyond.
func lives() []life {
	all := make([]life, kills)
	for i := range all {
		switch i % 10 {
		case 3, 5, 8:
			all[i].backward = killLimit/4 + rand.N(killLimit/2)
		case 7:
			all[i].backward = killFar
		}
	}
	return all
}

// TestKill9FiftyTimes kills the daemon at full speed again and again, and
// restarts it at once. IDs ascend over all lives, and no restart waits for the
// mark: it is exact, so that time has passed it when the next life begins.
func TestKill9FiftyTimes(t *testing.T) {
	ring.Deep(t)
	s := newSite(t)
	var all []uint64
	var last uint64
	var longest time.Duration
	refused, waited := 0, 0
	for i, l := range lives() {
		d := s.launchLife(l)
		d.AwaitReady()
		if l.refused() {
			checkRefusedLife(s)
			refused++
			d.Kill()
			continue
		}
		first, took, behind := firstID(s, l)
		if first <= last {
			t.Fatalf("life %d (%v back) began with %d, and %d was there before", i, l.backward, first, last)
		}
		if longest = max(longest, took); behind {
			waited++
		}
		ids := killAtFullSpeed(s, d)
		ids = append(ids, first)
		if n, twice := testkit.Duplicates(ids); n > 0 {
			t.Fatalf("life %d: %d IDs came twice; the first is %d", i, n, twice)
		}
		if ids[0] != first {
			t.Fatalf("life %d: %d came after %d", i, ids[0], first)
		}
		last = ids[len(ids)-1]
		all = append(all, ids...)
	}
	// Each life ascends and begins above the one before: nothing repeats.
	if !testkit.Ascending(all) {
		t.Error("the IDs of all lives do not ascend")
	}
	t.Logf("%d kills, %d IDs; the clock was too far back in %d lives, and waited for in %d; the longest wait for a first ID was %v",
		kills, len(all), refused, waited, longest.Round(time.Millisecond))
}

func (s *site) launchLife(l life) *testkit.Instance {
	s.T.Helper()
	args := []string{"--max-backward", killLimit.String()}
	if l.backward == 0 {
		return s.Launch(args...)
	}
	return s.LaunchShifted(-l.backward, args...).Instance
}

// firstID asks for the first ID of a life. behind reports that the daemon found
// its clock behind the mark.
func firstID(s *site, l life) (id uint64, took time.Duration, behind bool) {
	s.T.Helper()
	c := s.Dial()
	defer c.Close()
	began := time.Now()
	id = uint64(c.ID())
	took = time.Since(began)
	svc := c.Status().Services[0]
	if l.backward == 0 && svc.ClockBackward != 0 {
		s.T.Errorf("with the clock right, the daemon waited for the mark")
	}
	if testkit.IsFallback(id) || svc.Issued.Regular == 0 {
		s.T.Errorf("the first ID %d is a fallback ID: %+v", id, svc)
	}
	return id, took, svc.ClockBackward > 0
}

// checkRefusedLife looks at a daemon whose clock is further back than allowed.
func checkRefusedLife(s *site) {
	s.T.Helper()
	c := s.Dial()
	defer c.Close()
	err := c.Refused(wire.CodeClockBackward)
	text, _ := err.Detail("backward_ms")
	behind, parseErr := strconv.ParseInt(text, 10, 64)
	if parseErr != nil || behind > killFar.Milliseconds() || behind < (killFar-await.Patience).Milliseconds() {
		s.T.Errorf("the error is %q, want backward_ms somewhat below %d", err, killFar.Milliseconds())
	}
	if limit, _ := err.Detail("limit_ms"); limit != fmt.Sprint(killLimit.Milliseconds()) {
		s.T.Errorf("the error is %q, want limit_ms=%d", err, killLimit.Milliseconds())
	}
	if mode := c.Status().Mode; mode != "unavailable" {
		s.T.Errorf("the mode is %s", mode)
	}
}

// killAtFullSpeed has several askers at work, kills the daemon at a random
// moment, and returns what they received.
func killAtFullSpeed(s *site, d *testkit.Instance) (received []uint64) {
	s.T.Helper()
	enough, stopped := int64(1+rand.N(20_000)), make(chan struct{})
	var count atomic.Int64
	var once sync.Once
	got := make([][]uint64, killAskers)
	var all sync.WaitGroup
	for i := range got {
		c := s.Dial()
		all.Go(func() {
			defer c.Close()
			for {
				ids, err := testkit.AskSome(c.Client)
				if err != nil {
					if !errors.Is(err, wire.ErrConnectionLost) {
						s.T.Errorf("asking for IDs: %v", err)
						once.Do(func() { close(stopped) })
					}
					return
				}
				if n := len(got[i]); n > 0 && ids[0] <= got[i][n-1] {
					s.T.Errorf("%d came after %d on one connection", ids[0], got[i][n-1])
				}
				got[i] = append(got[i], ids...)
				if count.Add(int64(len(ids))) >= enough {
					once.Do(func() { close(stopped) })
				}
			}
		})
	}
	select {
	case <-stopped:
	case <-time.After(await.Patience):
		s.T.Errorf("only %d IDs in %v", count.Load(), await.Patience)
	}
	d.Kill()
	all.Wait()
	for _, ids := range got {
		received = append(received, ids...)
	}
	return received
}

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

	// The first of them may be what is left of the last millisecond; the rest
	// must wait for the clock.
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
