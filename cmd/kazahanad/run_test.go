package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// runArgs is run on the site's file with the terms, and CMD as a shell script.
func (s *site) runArgs(terms, script string, more ...string) []string {
	args := append([]string{"run", "--config", "none", "--provider", "sqlite:" + s.Leases() + "?" + terms}, more...)
	return append(args, "--", "sh", "-c", script, "sh", "{}")
}

// runStart starts it, and returns when the script has written its first line.
func (s *site) runStart(terms, script string, more ...string) (*testkit.Instance, *testkit.Log) {
	s.T.Helper()
	return s.firstLine(s.Command(s.runArgs(terms, script, more...)...))
}

// firstLine starts run or lock, and returns when CMD has written its first line.
func (s *site) firstLine(cmd *exec.Cmd) (d *testkit.Instance, out *testkit.Log) {
	s.T.Helper()
	out = &testkit.Log{}
	cmd.Stdout = out
	d = s.LaunchCommand(cmd)
	await.Eventually(s.T, "the command runs", func() bool {
		select {
		case <-d.Ended:
			s.T.Fatalf("%s ended: %v\n%s", cmd.Args[1], d.Err, d.Log)
		default:
		}
		return strings.Contains(out.String(), "\n")
	})
	return d, out
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func (s *site) recordOf(pid int) leaseLine {
	s.T.Helper()
	for _, l := range s.leasesJSON("--all", "--provider", "sqlite:"+s.Leases()).Leases {
		if l.PID == fmt.Sprint(pid) {
			return l
		}
	}
	s.T.Fatalf("no record of process %d", pid)
	return leaseLine{}
}

func TestRunGivesAMachineID(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	cmd := s.Command(s.runArgs("term=10m", `read line; echo "$1 $KAZAHANA_MACHINE_ID $line $2"; exit 42`, "--min", "7", "--max", "7", "--meta", "team=blue", "--service", "legacy")...)
	cmd.Args = append(cmd.Args, "-worker-id={},{}")
	cmd.Stdin = strings.NewReader("hello\n")
	cmd.Env = s.Environment("KAZAHANA_MACHINE_ID=99", "KAZAHANA_MAX_BACKWARD=rubbish")
	o := testkit.RunCommand(t, cmd)
	if o.Code != 42 || o.Stdout != "7 7 hello -worker-id=7,7\n" { // seed 001-4
		t.Errorf("%+v", o)
	}
	for _, want := range []string{"getting a machine ID from sqlite:", "machine ID: 7, until ", "starting...", "machine ID 7 is released, and free from"} {
		if !strings.Contains(o.Stderr, want) {
			t.Errorf("stderr does not say %q:\n%s", want, o.Stderr)
		}
	}
	l := s.leasesJSON("--all", "--provider", "sqlite:"+s.Leases()).Leases[0]
	if l.MachineID != 7 || l.Meta["team"] != "blue" || l.Service != "legacy" || l.Meta["command"] != "sh" ||
		// Seed 001-21: host, time, number.
		!regexp.MustCompile(`^`+regexp.QuoteMeta(l.Meta["host"])+`-\d{13}-[0-9a-f]{8}$`).MatchString(l.Meta["client"]) {
		t.Errorf("the record is %+v", l)
	}
	s.freedAtOnce(l) // seed 001-4
	// Each line names the holder, as the record does.
	for line := range strings.Lines(o.Stderr) {
		if l.Meta["client"] == "" || !strings.Contains(line, "client "+l.Meta["client"]+": ") { // seed 001-5
			t.Errorf("the lease is of client %q, and a line says %q", l.Meta["client"], line)
		}
	}
	if o := testkit.RunCommand(t, s.Command(s.runArgs("term=10m", "kill -USR1 $$", "-q")...)); o.Code != 128+int(syscall.SIGUSR1) || o.Stderr != "" {
		t.Errorf("killed by a signal: %+v", o)
	}
	if o := testkit.RunCommand(t, s.Command(s.runArgs("term=10m", "true", "--quiet")...)); o.Code != 0 || o.Stderr != "" {
		t.Errorf("quietly: %+v", o)
	}
}

// --placeholder names the text that is replaced, or none.
func TestRunPlaceholder(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for placeholder, want := range map[string]string{
		"--placeholder=":          "{} 7 a{}%n-",
		"--placeholder=%n":        "{} 7 a{}7-",
		"--placeholder={}":        "7 7 a7%n-",
		"--placeholder=no-such-x": "{} 7 a{}%n-",
	} {
		args := s.runArgs("term=10m", `echo "$1 $A $B"`, "-q", "--min", "7", "--max", "7", "--env", "A", "--env", "B=a{}%n-", placeholder)
		if got := testkit.RunCommand(t, s.Command(args...)).OK(t); got != want+"\n" {
			t.Errorf("%s: %q, want %q", placeholder, got, want)
		}
	}
}

// A log without its reader ends neither kazahanad nor CMD.
func TestRunWithoutAReaderOfItsLog(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	reader, writer, err := os.Pipe()
	must.Succeed(t, err)
	must.Succeed(t, reader.Close())
	defer writer.Close()
	cmd := s.Command(s.runArgs("term=10m", `echo ran; exit 6`)...)
	cmd.Stderr = writer
	cmd.WaitDelay = await.Patience
	if out, err := cmd.Output(); string(out) != "ran\n" || cmd.ProcessState.ExitCode() != 6 {
		t.Errorf("%q, %v", out, err)
	}
}

// freedAtOnce checks a record after CMD's end: where nothing can be known of the
// processes that CMD left, it is taken until the lease's end.
func (s *site) freedAtOnce(l leaseLine) {
	s.T.Helper()
	atOnce := l.FreeAtMS < l.ExpiredMS
	if !l.Released || l.FreeAtMS > l.ExpiredMS || atOnce != (runtime.GOOS == "linux") {
		s.T.Errorf("the record is %+v", l)
	}
}

func TestRunErrors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, args := range []string{"", "sh", "sh -c true", "--provider memory:", "--", "sh -- true", "--socket x"} {
		s.Kazahanad(append([]string{"run"}, strings.Fields(args)...)...).Fails(t, exitUsage, "kazahanad run -- CMD {}", "kazahanad serve")
	}
	run := func(args string) testkit.Outcome {
		return s.Kazahanad(append([]string{"run", "--config", "none"}, strings.Fields(args)...)...)
	}
	run("-- no-such-command").Fails(t, exitFailure, "no-such-command", "not found")
	run("--provider frob: -- true").Fails(t, exitUsage, "frob")
	run("--verify-interval 0 -- true").Fails(t, exitUsage, "--verify-interval", "1ms")
	run("--env =x -- true").Fails(t, exitUsage, "--env", "=x", "NAME=TEXT")
	run("--env A --env A=1 -- true").Fails(t, exitUsage, "--env A", "set already")
	run("--env KAZAHANA_MACHINE_ID -- true").Fails(t, exitUsage, "KAZAHANA_MACHINE_ID", "set already")
	run("--min 9 --max 8 -- true").Fails(t, exitUsage, "--min 9", "--max 8")
	run("--max 8192 -- true").Fails(t, exitUsage, "8192", "0-8191")
	run("--provider memory:?ids=10-19 --min 5 -- true").Fails(t, exitUsage, "10-19")
	run("--provider none: -- true").Says(t, exitFailure, "none", "cannot extend")
	run("--provider static:17 -- true").Says(t, exitFailure, "static", "cannot extend")
	server := s.StartLeaseServer("127.0.0.1:0", "--provider", "memory:?ids=17-17")
	run("--provider "+server.URL()+" --max 16 -- true").Says(t, exitFailure, "machine ID 17", "--max")
	testkit.WriteFile(t, s.Path("unusable.db"), "this is no database, and long enough to be looked at")
	run("--provider sqlite:"+s.Path("unusable.db")+" -- true").Says(t, exitFailure, "not an SQLite database")
}

func TestRunExtends(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d, _ := s.runStart("term=30s", `echo started; exec sleep 600`)
	first := s.recordOf(d.PID())
	await.Eventually(t, "the lease is extended twice", func() bool {
		return *s.leasesJSON("--provider", "sqlite:"+s.Leases()).ExtendTTLSuccess >= 2
	})
	// Seed 000-A.1-2.
	if now := s.recordOf(d.PID()); now.MachineID != first.MachineID || now.CreatedMS != first.CreatedMS || now.ExpiredMS <= first.ExpiredMS {
		t.Errorf("%+v became %+v", first, now)
	}
	_ = d.Cmd.Process.Signal(syscall.SIGTERM)
	if code := d.Code(); code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d\n%s", code, d.Log)
	}
	s.freedAtOnce(s.recordOf(d.PID()))
}

// A signal before the start ends the wait, and the machine ID is free at once.
func TestRunIsInterruptedBeforeTheStart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d := s.launchRun("waiting 5m0s more", s.runArgs("term=10m", "echo ran", "--delay", "5m")) // seed 001-23
	_ = d.Cmd.Process.Signal(syscall.SIGINT)
	if code := d.Code(); code != 128+int(syscall.SIGINT) {
		t.Errorf("exit code %d\n%s", code, d.Log)
	}
	if l := s.recordOf(d.PID()); !l.Released || l.FreeAtMS >= l.ExpiredMS {
		t.Errorf("the record is %+v", l)
	}
}

// After any end of kazahanad, no process is left that makes IDs.
func TestRunLeavesNobodyBehind(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	d, out := s.runStart("term=10m", `echo $$; exec sleep 600`)
	pid, err := strconv.Atoi(strings.TrimSpace(out.String()))
	if err != nil || !alive(pid) {
		t.Fatalf("CMD is process %q: %v", out, err)
	}
	if _, err := os.Stat("/proc/self/stat"); err == nil { // Linux
		d.Kill()
		await.Eventually(t, "CMD has ended with kazahanad", func() bool { return !alive(pid) })
	}
	// And what CMD leaves behind itself.
	o := testkit.RunCommand(t, s.Command(s.runArgs("term=10m", `sleep 600 >/dev/null 2>&1 & echo $!`, "-q")...))
	left, err := strconv.Atoi(strings.TrimSpace(o.Stdout))
	must.Succeed(t, err)
	await.Eventually(t, "what CMD left behind has ended", func() bool { return !alive(left) })
	// A program behind a shell, which a signal ends at once, ends in its own way.
	// It gets further signals too.
	d, out = s.runStart("term=10m", `(trap 'echo asked' TERM; trap 'echo ended well; exit' USR1; echo started; while :; do sleep 0.05; done) & wait`, "-q")
	d.Signal(syscall.SIGTERM)
	await.Eventually(t, "what CMD left behind gets SIGTERM", func() bool { return strings.Contains(out.String(), "asked") })
	d.Signal(syscall.SIGUSR1)
	if code := d.Code(); code != 128+int(syscall.SIGTERM) || !strings.Contains(out.String(), "ended well") {
		t.Errorf("exit code %d, %q\n%s", code, out, d.Log)
	}
}
