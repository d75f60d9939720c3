package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/wire"
)

func TestStateShow(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Kazahanad("state", "show").Fails(t, exitFailure, s.State)
	testkit.Mkdir(t, s.State)
	s.Kazahanad("state", "show").Fails(t, exitFailure, s.State, "holds no state")
	s.Kazahanad("state", "reset-floor", "--yes").Fails(t, exitFailure, s.State, "holds no state")
	d := s.Start()
	id := s.Dial().ID()
	lease := s.Dial().Lease()
	running := s.Kazahanad("state", "show").OK(t)
	for _, want := range []string{s.State, fmt.Sprintf("process %d", d.PID()), "service default", fmt.Sprintf("machine ID %d ", lease.MachineID), "set by lease"} {
		if !strings.Contains(running, want) {
			t.Errorf("state show does not say %q:\n%s", want, running)
		}
	}
	if mark := s.remembered().Mark; mark != testkit.UnixMS(id)+1 {
		t.Errorf("the mark is %d, and the one ID embeds %d", mark, testkit.UnixMS(id))
	}
	d.Kill()
	crashed := s.Kazahanad("state", "show", "--state-dir", s.State).OK(t)
	if !strings.Contains(crashed, "none runs") || !strings.Contains(crashed, fmt.Sprintf("machine ID %d ", lease.MachineID)) {
		t.Errorf("after a crash state show says\n%s", crashed)
	}
	if mark := s.remembered().Mark; mark != testkit.UnixMS(id)+1 {
		t.Errorf("after a crash the mark is %d, and the one ID embeds %d", mark, testkit.UnixMS(id))
	}
	s.Kazahanad("state", "accept-epoch").Fails(t, exitFailure, "default", "nothing to accept")
	s.Kazahanad("state", "accept-epoch", "--service", "other").Fails(t, exitFailure, "other", "default")
}

// TestStateOfTheConfiguration: the commands look where the daemon's configuration says, also if
// another state is at the usual place, and with any other fault of the configuration.
func TestStateOfTheConfiguration(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.Start()
	id := s.Dial().ID()
	d.Terminate()
	other := s.Path("other")
	testkit.Rename(t, s.State, other)
	d = s.Start()
	s.Dial().ID()
	d.Terminate()
	usual, err := os.ReadFile(s.State + "/state")
	must.Succeed(t, err)
	s.file("config.yaml", "state_dir: "+other+"\nfallback: none\nprovider: \"none:\"\nmax_conections: many\nlog_level: loud\n")
	run := func(args ...string) testkit.Outcome {
		cmd := s.Command(args...)
		cmd.Env = s.Environment("STATE_DIRECTORY="+s.State, "KAZAHANA_CONFIG="+s.Path("config.yaml"))
		return testkit.RunCommand(t, cmd)
	}
	if said := run("state", "show").OK(t); !strings.Contains(said, other) {
		t.Errorf("state show says\n%s", said)
	}
	if said := run("state", "reset-floor", "--yes").OK(t); !strings.Contains(said, snowflake.FormatMS(testkit.UnixMS(id)+1)) {
		t.Errorf("reset-floor says\n%s", said)
	}
	if now, err := os.ReadFile(s.State + "/state"); err != nil || !bytes.Equal(usual, now) {
		t.Errorf("the state at the usual place was changed, from\n%s\nto\n%s (%v)", usual, now, err)
	}
	s.file("config.yaml", "state_dir: none\n")
	run("state", "show").Fails(t, exitUsage, "state_dir is none")
}

// refusedEpoch has a daemon make IDs on the default epoch and then meet a
// provider with another one. It returns the last ID and the new provider.
func refusedEpoch(t *testing.T, s *site, epoch time.Time) (last snowflake.ID, args []string) {
	t.Helper()
	d := s.Start("--provider", "sqlite:"+s.Leases())
	last = s.Dial().ID()
	d.Terminate()
	args = []string{"--provider", "sqlite:" + s.Path("other.db") + "?epoch=" + epoch.Format(time.RFC3339)}
	d = s.Start(args...)
	c := s.Dial()
	var offered *int64
	await.Eventually(t, "the lease is refused", func() bool {
		offered = c.Status().Services[0].OfferedEpochMS
		return offered != nil
	})
	if *offered != epoch.UnixMilli() {
		t.Errorf("the offered epoch is %s", snowflake.FormatMS(*offered))
	}
	if id := c.ID(); id <= last || !testkit.IsFallback(uint64(id)) {
		t.Errorf("after %d came %d", last, id)
	} else {
		last = id
	}
	refusal := c.Refused(wire.CodeLeaseAcquisition, map[string]any{"regular_only": true})
	if cause, _ := refusal.Detail("cause"); !strings.Contains(cause, "accept-epoch") {
		t.Errorf("the error is %q", refusal)
	}
	if human := s.Kazahanad("status").OK(t); !strings.Contains(human, "accept-epoch") || !strings.Contains(human, snowflake.FormatMS(epoch.UnixMilli())) {
		t.Errorf("status says\n%s", human)
	}
	if !strings.Contains(d.Log.String(), "epoch mismatch") {
		t.Error("the log does not tell of the mismatch")
	}
	s.Kazahanad("state", "accept-epoch").Fails(t, exitFailure, fmt.Sprintf("process %d", d.PID()))
	d.Terminate()
	if human := s.Kazahanad("state", "show").OK(t); !strings.Contains(human, "accept-epoch") || !strings.Contains(human, snowflake.FormatMS(epoch.UnixMilli())) {
		t.Errorf("state show says\n%s", human)
	}
	return last, args
}

// regularOn starts the daemon again and returns an ID made on the epoch.
func regularOn(t *testing.T, s *site, epoch time.Time, args []string) snowflake.ID {
	t.Helper()
	s.Start(args...)
	c := s.Dial()
	id := c.ID(map[string]any{"regular_only": true})
	if svc := c.Status().Services[0]; svc.EpochMS != epoch.UnixMilli() || svc.OfferedEpochMS != nil || svc.Mode != "regular" {
		t.Errorf("the status is %+v", svc)
	}
	var in struct {
		TimestampMS int64  `json:"timestamp_ms"`
		Kind        string `json:"kind"`
	}
	testkit.DecodeJSON(t, s.Kazahanad("inspect", "--json", "--epoch", epoch.Format(time.RFC3339), fmt.Sprint(int64(id))).OK(t), &in)
	if off := time.Since(time.UnixMilli(in.TimestampMS)); in.Kind != snowflake.KindRegular || off.Abs() > await.Patience {
		t.Errorf("inspect says %+v", in)
	}
	return id
}

func TestAcceptEpochThatRepeats(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	epoch := time.UnixMilli(snowflake.DefaultEpochMS).Add(time.Hour).UTC()
	last, args := refusedEpoch(t, s, epoch)
	got := s.Kazahanad("state", "accept-epoch")
	got.Fails(t, exitFailure, "--force")
	if !strings.Contains(got.Stdout, "largest old ID") || !strings.Contains(got.Stdout, "smallest new ID") {
		t.Errorf("accept-epoch says\n%s", got.Stdout)
	}
	if report := s.remembered().Saved; report.Timeline.EpochMS != snowflake.DefaultEpochMS || report.Source != state.SourceLease || report.Offered == nil || report.Offered.EpochMS != epoch.UnixMilli() {
		t.Errorf("refusing changed the state to %+v", report)
	}
	if said := s.Kazahanad("state", "accept-epoch", "--force").OK(t); !strings.Contains(said, "by force") {
		t.Errorf("accept-epoch --force says\n%s", said)
	}
	if id := regularOn(t, s, epoch, args); id >= last {
		t.Errorf("%d came after %d, on a later epoch", id, last)
	}
}

// A host with a clock that was ahead at its start has dated IDs ahead. With the clock right it
// refuses until the operator gives up their order.
func TestResetFloor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	args := []string{"--provider", "sqlite:" + s.Leases()}
	ahead := s.LaunchShifted(time.Hour, args...)
	ahead.AwaitReady()
	dated := s.Dial().ID()
	if off := time.Until(time.UnixMilli(testkit.UnixMS(dated))); off < time.Hour-await.Patience {
		t.Fatalf("the ID is dated %v ahead", off)
	}
	ahead.Terminate()

	d := s.Start(args...)
	s.Dial().Refused(wire.CodeClockBackward)
	s.Kazahanad("health").Fails(t, exitFailure, "clock")
	if human := s.Kazahanad("status").OK(t); !strings.Contains(human, "unavailable") {
		t.Errorf("status says\n%s", human)
	}
	s.Kazahanad("state", "reset-floor", "--yes").Fails(t, exitFailure, fmt.Sprintf("process %d", d.PID()))
	d.Terminate()

	before := s.remembered().Mark
	s.Kazahanad("state", "reset-floor").Fails(t, exitUsage, "--yes", "leases", "smaller")
	s.Kazahanad("state", "reset-floor", "--yes", "--service", "other").Fails(t, exitFailure, "other", "default")
	if mark := s.remembered().Mark; mark != before || mark != testkit.UnixMS(dated)+1 {
		t.Errorf("the mark is %d, was %d, and the ID embeds %d", mark, before, testkit.UnixMS(dated))
	}
	said := s.Kazahanad("state", "reset-floor", "--yes").OK(t)
	if !strings.Contains(said, snowflake.FormatMS(before)) || !strings.Contains(said, "service default") || !strings.Contains(said, "unique") {
		t.Errorf("reset-floor says\n%s", said)
	}
	if mark := s.remembered().Mark; mark > time.Now().UnixMilli() {
		t.Errorf("the mark is still ahead: %s", snowflake.FormatMS(mark))
	}
	s.Start(args...)
	if id := s.Dial().ID(map[string]any{"regular_only": true}); id >= dated {
		t.Errorf("%d came after %d, which is dated ahead", id, dated)
	}
}

// Without a state directory the daemon works and says what that costs.
func TestStateless(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	real := s.State
	s.State = "none"
	d := s.Start("--provider", "sqlite:"+s.Leases())
	first := s.Dial().ID(map[string]any{"regular_only": true})
	if st := s.Dial().Status(); st.StateDir != "" || st.Mode != "regular" {
		t.Errorf("state_dir %q, mode %s", st.StateDir, st.Mode)
	}
	if human := s.Kazahanad("status").OK(t); !strings.Contains(human, "state     none") {
		t.Errorf("status says\n%s", human)
	}
	if !strings.Contains(d.Log.String(), "without a state directory") {
		t.Error("the log does not say what that costs")
	}
	d.Kill()
	s.Start("--provider", "sqlite:"+s.Leases())
	if id := s.Dial().ID(map[string]any{"regular_only": true}); id <= first {
		t.Errorf("%d came after %d", id, first)
	}
	s.State = real
	if _, err := state.Inspect(real, state.Options{}); err == nil {
		t.Error("a state directory was made")
	}
}
