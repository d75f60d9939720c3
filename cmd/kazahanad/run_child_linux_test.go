package main

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// A watchdog of systemd's for kazahanad is CMD's, under run and under lock. One for another process
// stays as it is. Sockets of a socket unit would be of no use: neither takes them.
func TestWatchdogOfSystemd(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Launch().AwaitReady()
	const script = `echo "process $WATCHDOG_PID"`
	for name, args := range map[string][]string{"run": s.runArgs("term=10m", script, "-q"), "lock": s.lockArgs("job", script, "-q")} {
		for who, want := range map[string]string{"$$": "process \n", "1": "process 1\n"} {
			cmd := s.handed(nil, args...)
			cmd.Args[2] = "export WATCHDOG_PID=" + who + "; " + cmd.Args[2]
			if o := testkit.RunCommand(t, cmd); o.Stdout != want {
				t.Errorf("%s, a watchdog for %s: %+v", name, who, o)
			}
		}
	}
	for name, args := range map[string][]string{"run": s.runArgs("term=10m", script, "-q"), "lock": s.lockArgs("job", script, "-q")} {
		cmd := s.handed(nil, args...)
		cmd.Args[2] = "export LISTEN_FDS=1 LISTEN_PID=$$; " + cmd.Args[2]
		t.Log(name)
		testkit.RunCommand(t, cmd).Fails(t, exitFailure, "would not get its sockets")
	}
	broken := s.Path("broken")
	testkit.WriteFile(t, broken, "#!/no/such/interpreter\n")
	must.Succeed(t, os.Chmod(broken, 0o755))
	testkit.RunCommand(t, s.handed(nil, "run", "-q", "--config", "none", "--provider", "sqlite:"+s.Leases(), "--", broken)).
		Says(t, exitFailure, "cannot run "+broken, "no such file")
}

// A program that becomes another user ends with kazahanad if setpriv says so, as docs/run.md
// has it.
func TestAnotherUserEndsWithRun(t *testing.T) {
	ring.All(t)
	needRoot(t)
	t.Parallel()
	s := newSite(t)
	page, err := os.ReadFile("../../docs/run.md")
	must.Succeed(t, err)
	for _, before := range []string{
		"gosu nobody setpriv --pdeathsig KILL --",
		"setpriv --reuid=nobody --regid=nogroup --clear-groups --pdeathsig KILL --",
		"chroot --userspec=nobody:nogroup / setpriv --pdeathsig KILL --",
		"runuser -u nobody -- setpriv --pdeathsig KILL --",
	} {
		t.Run(before, func(t *testing.T) {
			t.Parallel()
			words := strings.Fields(before)
			ring.Program(t, words[0])
			args := append([]string{"run", "-q", "--config", "none", "--provider", "sqlite:" + s.Path("numbers.db"), "--"}, words...)
			d, out := s.firstLine(s.Command(append(args, "sh", "-c", `echo $$; exec sleep 600`)...))
			pid, err := strconv.Atoi(strings.TrimSpace(out.String()))
			must.Succeed(t, err)
			d.Kill()
			await.Eventually(t, "the program has ended with kazahanad", func() bool { return !alive(pid) })
		})
	}
	if !strings.Contains(string(page), "gosu app setpriv --pdeathsig KILL -- ./app") {
		t.Error("docs/run.md does not say how")
	}
}
