package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/clock"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/wire"
)

// shiftedClock is the system's clock with its wall time moved.
type shiftedClock struct {
	clock.System
	shift atomic.Int64 // nanoseconds
}

// Wall implements clock.Source.
func (c *shiftedClock) Wall() int64 { return c.System.Wall() + c.shift.Load() }

// hostEnv is the name of a child daemon's host: providers may compare the clocks
// of hosts, and several share one in a test.
const hostEnv = "KZTEST_HOST"

// childDaemon is the command whose host's wall clock is wrong by the first
// argument, and by each duration that comes on standard input; "ok" on
// standard output says that it has been set.
func childDaemon(args []string) error {
	shift, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	c := &shiftedClock{}
	c.shift.Store(int64(shift))
	wallSource, hostName = c, os.Getenv(hostEnv)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			shift, err := time.ParseDuration(lines.Text())
			if err != nil {
				fmt.Println(err)
				return
			}
			c.shift.Store(int64(shift))
			time.Sleep(time.Millisecond) // the wall clock is looked at every 0.1 ms: from here on whoever asks sees the step
			fmt.Println("ok")
		}
	}()
	os.Args = append([]string{"kazahanad"}, args[1:]...)
	main()
	return errors.New("main returned")
}

// shifted is a daemon whose host's clock the test sets.
type shifted struct {
	*instance
	stdin  io.Writer
	stdout *bufio.Reader
}

// launchShifted runs the daemon on a host whose clock is wrong by shift.
func (s *site) launchShifted(shift time.Duration, args ...string) *shifted {
	s.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(exe, append([]string{shift.String()}, s.serveArgs(args...)...)...)
	cmd.Env = s.environment(childEnv+"=daemon", hostEnv+"="+s.host)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	return &shifted{s.launchCommand(cmd), stdin, bufio.NewReader(stdout)}
}

// set moves the clock, and returns when it is moved.
func (d *shifted) set(shift time.Duration) {
	d.t.Helper()
	if _, err := fmt.Fprintln(d.stdin, shift); err != nil {
		d.t.Fatal(err)
	}
	if line, err := d.stdout.ReadString('\n'); line != "ok\n" {
		d.t.Fatalf("setting the clock: %q, %v", line, err)
	}
}

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
	s := newSite(t)
	var all []uint64
	var last uint64
	var longest time.Duration
	refused, waited := 0, 0
	for i, l := range lives() {
		d := s.launchLife(l)
		d.awaitReady()
		if l.refused() {
			checkRefusedLife(s)
			refused++
			d.kill()
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
		if n, twice := duplicates(ids); n > 0 {
			t.Fatalf("life %d: %d IDs came twice; the first is %d", i, n, twice)
		}
		if ids[0] != first {
			t.Fatalf("life %d: %d came after %d", i, ids[0], first)
		}
		last = ids[len(ids)-1]
		all = append(all, ids...)
	}
	// Each life ascends and begins above the one before: nothing repeats.
	if !ascending(all) {
		t.Error("the IDs of all lives do not ascend")
	}
	t.Logf("%d kills, %d IDs; the clock was too far back in %d lives, and waited for in %d; the longest wait for a first ID was %v",
		kills, len(all), refused, waited, longest.Round(time.Millisecond))
}

func (s *site) launchLife(l life) *instance {
	s.t.Helper()
	args := []string{"--max-backward", killLimit.String()}
	if l.backward == 0 {
		return s.launch(args...)
	}
	return s.launchShifted(-l.backward, args...).instance
}

// firstID asks for the first ID of a life. behind reports that the daemon found
// its clock behind the mark.
func firstID(s *site, l life) (id uint64, took time.Duration, behind bool) {
	s.t.Helper()
	c := s.dial()
	defer c.Close()
	began := time.Now()
	id = uint64(c.id())
	took = time.Since(began)
	svc := c.status().Services[0]
	if l.backward == 0 && svc.ClockBackward != 0 {
		s.t.Errorf("with the clock right, the daemon waited for the mark")
	}
	if isFallback(id) || svc.Issued.Regular == 0 {
		s.t.Errorf("the first ID %d is a fallback ID: %+v", id, svc)
	}
	return id, took, svc.ClockBackward > 0
}

// checkRefusedLife looks at a daemon whose clock is further back than allowed.
func checkRefusedLife(s *site) {
	s.t.Helper()
	c := s.dial()
	defer c.Close()
	err := c.refused(wire.CodeClockBackward)
	text, _ := err.Detail("backward_ms")
	behind, parseErr := strconv.ParseInt(text, 10, 64)
	if parseErr != nil || behind > killFar.Milliseconds() || behind < (killFar-patience).Milliseconds() {
		s.t.Errorf("the error is %q, want backward_ms somewhat below %d", err, killFar.Milliseconds())
	}
	if limit, _ := err.Detail("limit_ms"); limit != fmt.Sprint(killLimit.Milliseconds()) {
		s.t.Errorf("the error is %q, want limit_ms=%d", err, killLimit.Milliseconds())
	}
	if mode := c.status().Mode; mode != "unavailable" {
		s.t.Errorf("the mode is %s", mode)
	}
}

// killAtFullSpeed has several askers at work, kills the daemon at a random
// moment, and returns what they received.
func killAtFullSpeed(s *site, d *instance) (received []uint64) {
	s.t.Helper()
	enough, stopped := int64(1+rand.N(20_000)), make(chan struct{})
	var count atomic.Int64
	var once sync.Once
	got := make([][]uint64, killAskers)
	var all sync.WaitGroup
	for i := range got {
		c := s.dial()
		all.Go(func() {
			defer c.Close()
			for {
				ids, err := stormAsk(c.Client)
				if err != nil {
					if !errors.Is(err, wire.ErrConnectionLost) {
						s.t.Errorf("asking for IDs: %v", err)
						once.Do(func() { close(stopped) })
					}
					return
				}
				if n := len(got[i]); n > 0 && ids[0] <= got[i][n-1] {
					s.t.Errorf("%d came after %d on one connection", ids[0], got[i][n-1])
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
	case <-time.After(patience):
		s.t.Errorf("only %d IDs in %v", count.Load(), patience)
	}
	d.kill()
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
	d := s.launchShifted(0, "--max-backward", "2s")
	d.awaitReady()
	c := s.dial()
	last := c.id()
	next := func(what string) {
		t.Helper()
		id := c.id()
		if id <= last {
			t.Errorf("%s: %d came after %d", what, id, last)
		}
		last = id
	}

	// The first of them may be what is left of the last millisecond; the rest
	// must wait for the clock.
	d.set(-200 * time.Millisecond)
	batch := c.ids(600)
	if first := snowflake.ID(batch[0]); first <= last {
		t.Errorf("a little back: %d came after %d", first, last)
	}
	last = snowflake.ID(batch[len(batch)-1])
	d.set(-time.Hour)
	refusal := c.refused(wire.CodeClockBackward)
	behind, _ := refusal.Detail("backward_ms")
	if ms, err := strconv.ParseInt(behind, 10, 64); err != nil || ms > time.Hour.Milliseconds() || ms < (time.Hour-patience).Milliseconds() {
		t.Errorf("an hour back: %v", refusal)
	}
	s.kazahanad("id").fails(t, exitFailure, "CLOCK_BACKWARD", "backward_ms=", "limit_ms=2000", "NTP")
	s.kazahanad("health").fails(t, exitFailure, "cannot issue IDs", "clock")
	d.set(0)
	next("right again")

	d.set(time.Hour)
	next("an hour ahead")
	if ahead := time.Duration(unixMS(last)-time.Now().UnixMilli()) * time.Millisecond; ahead > patience {
		t.Errorf("one reading of a wrong clock dated an ID %v ahead", ahead)
	}
	if off := c.status().ClockOffMS; off < (time.Hour - patience).Milliseconds() {
		t.Errorf("status says that the clock is %d ms off", off)
	}
	d.kill()
	d.instance = s.start()
	c = s.dial()
	next("after a restart with the right clock")
	if n := c.status().Services[0].ClockBackward; n != 0 {
		t.Errorf("the restart found the clock behind %d times", n)
	}
}
