package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/state"
	"github.com/kazahana/kazahana/internal/wire"
)

func TestStateShow(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.kazahanad("state", "show").fails(t, exitFailure, s.state)
	mkdir(t, s.state)
	s.kazahanad("state", "show").fails(t, exitFailure, s.state, "holds no state")
	s.kazahanad("state", "reset-floor", "--yes").fails(t, exitFailure, s.state, "holds no state")
	d := s.start()
	id := s.dial().id()
	lease := s.dial().lease()
	running := s.kazahanad("state", "show").ok(t)
	for _, want := range []string{s.state, fmt.Sprintf("process %d", d.pid()), "service default", fmt.Sprintf("machine ID %d ", lease.MachineID), "set by lease"} {
		if !strings.Contains(running, want) {
			t.Errorf("state show does not say %q:\n%s", want, running)
		}
	}
	if mark := s.remembered().MarkMS; mark != unixMS(id)+1 {
		t.Errorf("the mark is %d, and the one ID embeds %d", mark, unixMS(id))
	}
	d.kill()
	crashed := s.kazahanad("state", "show", "--state-dir", s.state).ok(t)
	if !strings.Contains(crashed, "none runs") || !strings.Contains(crashed, fmt.Sprintf("machine ID %d ", lease.MachineID)) {
		t.Errorf("after a crash state show says\n%s", crashed)
	}
	if mark := s.remembered().MarkMS; mark != unixMS(id)+1 {
		t.Errorf("after a crash the mark is %d, and the one ID embeds %d", mark, unixMS(id))
	}
	s.kazahanad("state", "accept-epoch").fails(t, exitFailure, "default", "nothing to accept")
	s.kazahanad("state", "accept-epoch", "--service", "other").fails(t, exitFailure, "other", "default")
}

// refusedEpoch has a daemon make IDs on the default epoch and then meet a
// provider with another one. It returns the last ID and the new provider.
func refusedEpoch(t *testing.T, s *site, epoch time.Time) (last snowflake.ID, args []string) {
	t.Helper()
	d := s.start("--provider", "sqlite:"+s.leases())
	last = s.dial().id()
	d.terminate()
	args = []string{"--provider", "sqlite:" + s.path("other.db") + "?epoch=" + epoch.Format(time.RFC3339)}
	d = s.start(args...)
	c := s.dial()
	var offered *int64
	eventually(t, "the lease is refused", func() bool {
		offered = c.status().Services[0].OfferedEpochMS
		return offered != nil
	})
	if *offered != epoch.UnixMilli() {
		t.Errorf("the offered epoch is %s", snowflake.FormatMS(*offered))
	}
	if id := c.id(); id <= last || !isFallback(uint64(id)) {
		t.Errorf("after %d came %d", last, id)
	} else {
		last = id
	}
	refusal := c.refused(wire.CodeLeaseAcquisition, map[string]any{"regular_only": true})
	if cause, _ := refusal.Detail("cause"); !strings.Contains(cause, "accept-epoch") {
		t.Errorf("the error is %q", refusal)
	}
	if human := s.kazahanad("status").ok(t); !strings.Contains(human, "accept-epoch") || !strings.Contains(human, snowflake.FormatMS(epoch.UnixMilli())) {
		t.Errorf("status says\n%s", human)
	}
	if !strings.Contains(d.log.String(), "epoch mismatch") {
		t.Error("the log does not tell of the mismatch")
	}
	s.kazahanad("state", "accept-epoch").fails(t, exitFailure, fmt.Sprintf("process %d", d.pid()))
	d.terminate()
	if human := s.kazahanad("state", "show").ok(t); !strings.Contains(human, "accept-epoch") || !strings.Contains(human, snowflake.FormatMS(epoch.UnixMilli())) {
		t.Errorf("state show says\n%s", human)
	}
	return last, args
}

// regularOn starts the daemon again and returns an ID made on the epoch.
func regularOn(t *testing.T, s *site, epoch time.Time, args []string) snowflake.ID {
	t.Helper()
	s.start(args...)
	c := s.dial()
	id := c.id(map[string]any{"regular_only": true})
	if svc := c.status().Services[0]; svc.EpochMS != epoch.UnixMilli() || svc.OfferedEpochMS != nil || svc.Mode != "regular" {
		t.Errorf("the status is %+v", svc)
	}
	var in struct {
		TimestampMS int64  `json:"timestamp_ms"`
		Kind        string `json:"kind"`
	}
	decodeJSON(t, s.kazahanad("inspect", "--json", "--epoch", epoch.Format(time.RFC3339), fmt.Sprint(int64(id))).ok(t), &in)
	if off := time.Since(time.UnixMilli(in.TimestampMS)); in.Kind != snowflake.KindRegular || off.Abs() > patience {
		t.Errorf("inspect says %+v", in)
	}
	return id
}

func TestAcceptEpochThatAscends(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	epoch := time.UnixMilli(snowflake.DefaultEpochMS).Add(-24 * time.Hour).UTC()
	last, args := refusedEpoch(t, s, epoch)
	said := s.kazahanad("state", "accept-epoch").ok(t)
	if !strings.Contains(said, "largest old ID") || !strings.Contains(said, "smallest new ID") || !strings.Contains(said, "accepted") {
		t.Errorf("accept-epoch says\n%s", said)
	}
	if id := regularOn(t, s, epoch, args); id <= last {
		t.Errorf("%d came after %d", id, last)
	}
}

func TestAcceptEpochThatRepeats(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	epoch := time.UnixMilli(snowflake.DefaultEpochMS).Add(time.Hour).UTC()
	last, args := refusedEpoch(t, s, epoch)
	got := s.kazahanad("state", "accept-epoch")
	got.fails(t, exitFailure, "--force")
	if !strings.Contains(got.stdout, "largest old ID") || !strings.Contains(got.stdout, "smallest new ID") {
		t.Errorf("accept-epoch says\n%s", got.stdout)
	}
	if report := s.remembered(); report.EpochMS != snowflake.DefaultEpochMS || report.EpochSetBy != "lease" || report.OfferedEpochMS == nil || *report.OfferedEpochMS != epoch.UnixMilli() {
		t.Errorf("refusing changed the state to %+v", report)
	}
	if said := s.kazahanad("state", "accept-epoch", "--force").ok(t); !strings.Contains(said, "by force") {
		t.Errorf("accept-epoch --force says\n%s", said)
	}
	if id := regularOn(t, s, epoch, args); id >= last {
		t.Errorf("%d came after %d, on a later epoch", id, last)
	}
}

// A host whose clock was ahead when it started has dated IDs ahead. With the
// clock right it refuses until the operator gives up their order.
func TestResetFloor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	args := []string{"--provider", "sqlite:" + s.leases()}
	ahead := s.launchShifted(time.Hour, args...)
	ahead.awaitReady()
	dated := s.dial().id()
	if off := time.Until(time.UnixMilli(unixMS(dated))); off < time.Hour-patience {
		t.Fatalf("the ID is dated %v ahead", off)
	}
	ahead.terminate()

	d := s.start(args...)
	s.dial().refused(wire.CodeClockBackward)
	s.kazahanad("health").fails(t, exitFailure, "clock")
	if human := s.kazahanad("status").ok(t); !strings.Contains(human, "unavailable") {
		t.Errorf("status says\n%s", human)
	}
	s.kazahanad("state", "reset-floor", "--yes").fails(t, exitFailure, fmt.Sprintf("process %d", d.pid()))
	d.terminate()

	before := s.remembered().MarkMS
	s.kazahanad("state", "reset-floor").fails(t, exitUsage, "--yes", "leases", "smaller")
	s.kazahanad("state", "reset-floor", "--yes", "--service", "other").fails(t, exitFailure, "other", "default")
	if mark := s.remembered().MarkMS; mark != before || mark != unixMS(dated)+1 {
		t.Errorf("the mark is %d, was %d, and the ID embeds %d", mark, before, unixMS(dated))
	}
	said := s.kazahanad("state", "reset-floor", "--yes").ok(t)
	if !strings.Contains(said, snowflake.FormatMS(before)) || !strings.Contains(said, "service default") || !strings.Contains(said, "unique") {
		t.Errorf("reset-floor says\n%s", said)
	}
	if mark := s.remembered().MarkMS; mark > time.Now().UnixMilli() {
		t.Errorf("the mark is still ahead: %s", snowflake.FormatMS(mark))
	}
	s.start(args...)
	if id := s.dial().id(map[string]any{"regular_only": true}); id >= dated {
		t.Errorf("%d came after %d, which is dated ahead", id, dated)
	}
}

// Without a state directory the daemon works and says what that costs.
func TestStateless(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	real := s.state
	s.state = "none"
	d := s.start("--provider", "sqlite:"+s.leases())
	first := s.dial().id(map[string]any{"regular_only": true})
	if st := s.dial().status(); st.StateDir != "" || st.Mode != "regular" {
		t.Errorf("state_dir %q, mode %s", st.StateDir, st.Mode)
	}
	if human := s.kazahanad("status").ok(t); !strings.Contains(human, "state     none") {
		t.Errorf("status says\n%s", human)
	}
	if !strings.Contains(d.log.String(), "without a state directory") {
		t.Error("the log does not say what that costs")
	}
	d.kill()
	s.start("--provider", "sqlite:"+s.leases())
	if id := s.dial().id(map[string]any{"regular_only": true}); id <= first {
		t.Errorf("%d came after %d", id, first)
	}
	s.state = real
	if _, err := state.Inspect(real, state.Options{}); err == nil {
		t.Error("a state directory was made")
	}
}
