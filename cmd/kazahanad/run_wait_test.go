package main

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
)

// A full pool is waited for, as long as --wait says.
func TestRunWaitsForAMachineID(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	holder, _ := s.runStart("term=10m&ids=5-5", "echo started; exec sleep 600")
	full := []string{"no machine ID: all 1 machine IDs", "free at"}
	testkit.RunCommand(t, s.Command(s.runArgs("term=10m&ids=5-5", "true", "--wait", "0")...)).Says(t, exitFailure, full...)
	full[0] = "no machine ID within 100ms: all 1 machine IDs"
	testkit.RunCommand(t, s.Command(s.runArgs("term=10m&ids=5-5", "true", "--wait", "100ms")...)).Says(t, exitFailure, full...)
	const waits = "waiting for a machine ID"
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
		d := s.launchRun(waits, s.runArgs("term=10m&ids=5-5", "true"))
		_ = d.Cmd.Process.Signal(sig)
		if code := d.Code(); code != 128+int(sig) {
			t.Errorf("%v: exit code %d\n%s", sig, code, d.Log)
		}
	}
	next := s.launchRun(waits, s.runArgs("term=10m&ids=5-5", "exit 3"))
	_ = holder.Cmd.Process.Signal(syscall.SIGTERM)
	holder.AwaitEnd()
	if code := next.Code(); code != 3 { // seed 001-12
		t.Errorf("exit code %d\n%s", code, next.Log)
	}
}

// CMD gets the variables that it asks for, and none that configure kazahana.
func TestRunEnvironment(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	cmd := s.Command(s.runArgs("term=10m", "env", "--min", "9", "--max", "9", "--env", "WORKER", "--env", "A=w-{}/{}, x", "--env", "EMPTY=", "--env", "B=b=b", "-q")...)
	cmd.Env = s.Environment("KAZAHANA_PROVIDER=redis://user:hunter2@nowhere/", "KAZAHANA_STORE=redis://:hunter2@nowhere/", "KAZAHANA_PROVIDR=hunter2", "KAZAHANA_VERIFY_INTERVAL=5s",
		"KAZAHANA_SOCKET=/s", "KAZAHANA_CONFIG=none", "KAZAHANA_LOCK_KEY=k", "KAZAHANA_MACHINE_ID=1", "WORKER=old", "OTHER=kept")
	o := testkit.RunCommand(t, cmd)
	lines := strings.Split(o.OK(t), "\n")
	for _, want := range []string{"WORKER=9", "A=w-9/9, x", "EMPTY=", "B=b=b", "OTHER=kept", "KAZAHANA_SOCKET=/s", "KAZAHANA_CONFIG=none", "KAZAHANA_LOCK_KEY=k", "KAZAHANA_MACHINE_ID=9"} {
		if !slices.Contains(lines, want) {
			t.Errorf("CMD lacks %s:\n%s", want, o.Stdout)
		}
	}
	checkHandedOn(t, o.Stdout)
}

// checkHandedOn fails for variables of kazahana that CMD should not see.
func checkHandedOn(t *testing.T, environment string) {
	t.Helper()
	for line := range strings.Lines(environment) {
		name, _, _ := strings.Cut(line, "=")
		if strings.HasPrefix(name, "KAZAHANA_") && !slices.Contains(handedOn, name) || strings.Contains(line, "hunter2") || line == "WORKER=old\n" {
			t.Errorf("CMD sees %s", line)
		}
	}
}

func TestLockEnvironment(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start()
	cmd := s.Command("lock", "--socket", s.Socket, "-q", "k", "--", "env")
	cmd.Env = s.Environment("KAZAHANA_PROVIDER=redis://user:hunter2@nowhere/", "KAZAHANA_CONFIG=none", "KAZAHANA_MACHINE_ID=7")
	o := testkit.RunCommand(t, cmd)
	for _, want := range []string{"KAZAHANA_LOCK_KEY=k", "KAZAHANA_CONFIG=none", "KAZAHANA_MACHINE_ID=7"} {
		if !strings.Contains(o.OK(t), want+"\n") {
			t.Errorf("CMD lacks %s:\n%s", want, o.Stdout)
		}
	}
	checkHandedOn(t, o.Stdout)
}

// A machine ID comes free at once where all that CMD started has ended, also what
// has left its process group. What has not may go on to make IDs.
func TestRunSeesWhatIsLeft(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		script string
		left   bool
	}{
		"nothing":                {"exit 1", false},
		"a process of its group": {"sleep 600 >/dev/null 2>&1 & exit 0", false},
		"one that ignores TERM":  {"(trap '' TERM HUP; sleep 600 >/dev/null 2>&1) & exit 0", false},
		"a session that ends":    {"setsid sh -c true & wait; exit 0", false},
		"a session of its own":   {`setsid sh -c 'echo $$ >left; exec sleep 600 >/dev/null 2>&1' & until [ -s left ]; do :; done; cat left; exit 0`, true},
		"a daemon":               {`setsid sh -c 'sleep 600 >/dev/null 2>&1 & echo $!'; exit 0`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			cmd := s.Command(s.runArgs("term=10m", test.script)...)
			cmd.Dir = s.Dir
			o := testkit.RunCommand(t, cmd)
			if test.left {
				var pid int
				if _, err := fmt.Sscan(o.Stdout, &pid); err != nil || !alive(pid) {
					t.Fatalf("%+v", o)
				}
				defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
			}
			l := s.leasesJSON("--all", "--provider", "sqlite:"+s.Leases()).Leases[0]
			if test.left {
				if !l.Released || l.FreeAtMS != l.ExpiredMS || !strings.Contains(o.Stderr, "not every process") {
					t.Errorf("the record is %+v after\n%s", l, o.Stderr)
				}
				return
			}
			s.freedAtOnce(l)
		})
	}
}
