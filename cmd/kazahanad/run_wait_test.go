package main

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A full pool is waited for, as long as --wait says.
func TestRunWaitsForAMachineID(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	holder, _ := s.runStart("term=10m&ids=5-5", "echo started; exec sleep 600")
	full := []string{"no machine ID: all 1 machine IDs", "free at"}
	runCommand(t, s.command(s.runArgs("term=10m&ids=5-5", "true", "--wait", "0")...)).says(t, exitFailure, full...)
	full[0] = "no machine ID within 100ms: all 1 machine IDs"
	runCommand(t, s.command(s.runArgs("term=10m&ids=5-5", "true", "--wait", "100ms")...)).says(t, exitFailure, full...)
	waits := func(d *instance) func() bool {
		return func() bool { return strings.Contains(d.log.String(), "the next one may come free at") }
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
		d := s.launchCommand(s.command(s.runArgs("term=10m&ids=5-5", "true")...))
		eventually(t, "it waits", waits(d))
		_ = d.cmd.Process.Signal(sig)
		if code := d.code(); code != 128+int(sig) {
			t.Errorf("%v: exit code %d\n%s", sig, code, d.log)
		}
	}
	next := s.launchCommand(s.command(s.runArgs("term=10m&ids=5-5", "exit 3")...))
	eventually(t, "it waits", waits(next))
	_ = holder.cmd.Process.Signal(syscall.SIGTERM)
	holder.awaitEnd()
	if code := next.code(); code != 3 {
		t.Errorf("exit code %d\n%s", code, next.log)
	}
}

// CMD gets the variables that it asks for, and none that configure kazahana.
func TestRunEnvironment(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	cmd := s.command(s.runArgs("term=10m", "env", "--min", "9", "--max", "9", "--env", "WORKER", "--env", "A=w-{}/{}, x", "--env", "EMPTY=", "--env", "B=b=b", "-q")...)
	cmd.Env = s.environment("KAZAHANA_PROVIDER=redis://user:hunter2@nowhere/", "KAZAHANA_STORE=redis://:hunter2@nowhere/", "KAZAHANA_PROVIDR=hunter2", "KAZAHANA_VERIFY_INTERVAL=5s",
		"KAZAHANA_SOCKET=/s", "KAZAHANA_CONFIG=none", "KAZAHANA_LOCK_KEY=k", "KAZAHANA_MACHINE_ID=1", "WORKER=old", "OTHER=kept")
	o := runCommand(t, cmd)
	lines := strings.Split(o.ok(t), "\n")
	for _, want := range []string{"WORKER=9", "A=w-9/9, x", "EMPTY=", "B=b=b", "OTHER=kept", "KAZAHANA_SOCKET=/s", "KAZAHANA_CONFIG=none", "KAZAHANA_LOCK_KEY=k", "KAZAHANA_MACHINE_ID=9"} {
		if !slices.Contains(lines, want) {
			t.Errorf("CMD lacks %s:\n%s", want, o.stdout)
		}
	}
	checkHandedOn(t, o.stdout)
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
	s.start()
	cmd := s.command("lock", "--socket", s.socket, "-q", "k", "--", "env")
	cmd.Env = s.environment("KAZAHANA_PROVIDER=redis://user:hunter2@nowhere/", "KAZAHANA_CONFIG=none", "KAZAHANA_MACHINE_ID=7")
	o := runCommand(t, cmd)
	for _, want := range []string{"KAZAHANA_LOCK_KEY=k", "KAZAHANA_CONFIG=none", "KAZAHANA_MACHINE_ID=7"} {
		if !strings.Contains(o.ok(t), want+"\n") {
			t.Errorf("CMD lacks %s:\n%s", want, o.stdout)
		}
	}
	checkHandedOn(t, o.stdout)
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
			cmd := s.command(s.runArgs("term=10m", test.script)...)
			cmd.Dir = s.dir
			o := runCommand(t, cmd)
			if test.left {
				var pid int
				if _, err := fmt.Sscan(o.stdout, &pid); err != nil || !alive(pid) {
					t.Fatalf("%+v", o)
				}
				defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
			}
			l := s.leasesJSON("--all", "--provider", "sqlite:"+s.leases()).Leases[0]
			if test.left {
				if !l.Released || l.FreeAtMS != l.ExpiredMS || !strings.Contains(o.stderr, "not every process") {
					t.Errorf("the record is %+v after\n%s", l, o.stderr)
				}
				return
			}
			s.freedAtOnce(l)
		})
	}
}
