package main

import (
	"database/sql"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// number is the first number that follows the word on the terminal.
func (on *screen) number(word string) (n int) {
	on.T.Helper()
	line := regexp.MustCompile(word + ` (\d+)\r?\n`)
	await.Eventually(on.T, "the terminal shows "+word+" and a number", func() bool {
		found := line.FindStringSubmatch(on.said.String())
		if found == nil {
			return false
		}
		n, _ = strconv.Atoi(found[1])
		return true
	})
	return n
}

// front is the process group that has the terminal.
func (on *screen) front() int {
	on.T.Helper()
	group, err := unix.IoctlGetInt(int(on.outside.Fd()), unix.TIOCGPGRP)
	must.Succeed(on.T, err)
	return group
}

func (on *screen) awaitFront(group int) {
	on.T.Helper()
	await.Eventually(on.T, fmt.Sprintf("process group %d has the terminal", group), func() bool { return on.front() == group })
}

const (
	ctrlZ  = "\x1a" // what the key sends
	answer = "an answer\n"
)

// Where standard input or output is not the terminal, CMD gets the terminal as soon as it
// needs it, and the shell gets it back.
func TestTerminalIsLentOnDemand(t *testing.T) {
	t.Parallel()
	const (
		piped = `trap : INT; { trap : INT; "$0" "$@"; echo "code $?"; } | { trap "" INT; cat; }; read more; echo "shell read $more"`
		fed   = `trap : INT; "$0" "$@" </dev/null; echo "code $?"; read more; echo "shell read $more"`
	)
	for name, test := range map[string]struct{ shell, script, types, after, code string }{
		"output":              {piped, `echo "CMD $$"; read line; echo "got $line"`, answer, "got an answer", "code 0"},
		"output, interrupted": {piped, `echo "CMD $$"; read line; echo "got $line"`, ctrlC, "code 130", "code 130"},
		"input":               {fed, `echo "CMD $$"; read line </dev/tty; echo "got $line"`, answer, "got an answer", "code 0"},
		"settings":            {piped, `echo "CMD $$"; stty -echo; read line; stty echo; echo "got $line"`, answer, "got an answer", "code 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			on := s.inShell(test.shell, s.runArgs("term=10m", test.script, "-q")...)
			on.awaitFront(on.number("CMD"))
			on.typed(test.types)
			on.heard(test.after)
			on.heard(test.code)
			on.ends()
		})
	}
}

// A job in the background that needs the terminal stops as a whole, until it is brought to
// the front.
func TestTerminalOfAnotherJob(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const shell = `set -m; "$0" "$@" & read go; fg; echo "code $?"; read more; echo "shell read $more"`
	on := s.inShell(shell, s.runArgs("term=10m", `echo "CMD $$"; echo "kazahanad $PPID"; read line </dev/tty; echo "got $line"`, "-q")...)
	await.Stopped(t, on.number("CMD"))
	await.Stopped(t, on.number("kazahanad"))
	on.typed("go\n")
	on.awaitFront(on.number("CMD"))
	on.typed(answer)
	on.heard("got an answer")
	on.heard("code 0")
	on.ends()
}

// If another process of the job reads from the terminal while CMD has it, the kernel stops the
// job. CMD stops as well, since its lease is not extended meanwhile.
func TestTerminalOfTheRestOfTheJob(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	// A shell puts the job in front once more when it starts the rest, so CMD reads after that.
	const rest = `{ : >"$HOME/begun"; read pid; echo "$pid"; read line; read line </dev/tty; echo "rest got $line"; : >"$HOME/done"; cat; }`
	// CMD waits in itself: a shell that is starting another program does not show that it has stopped.
	const script = `mkfifo "$HOME/done"; until [ -e "$HOME/begun" ]; do :; done; echo "CMD $$"; read line; echo "$line"; read line <"$HOME/done"; read line; echo "CMD got $line"`
	on := s.inShell(`set -m; "$0" "$@" | `+rest+`; echo "stopped $?"; read go; fg; echo "code $?"; read more; echo "shell read $more"`,
		s.runArgs("term=10m", script, "-q")...)
	cmd := on.number("CMD")
	on.awaitFront(cmd)
	on.typed(answer)
	on.number("stopped")
	await.Stopped(t, cmd)
	on.typed("go\n" + answer)
	on.heard("rest got an answer")
	on.awaitFront(cmd)
	on.typed(answer)
	on.heard("CMD got an answer")
	on.heard("code 0")
	on.ends()
}

// What ends CMD ends it too while it is stopped.
func TestRunEndsAStoppedCommand(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*site, *testkit.Instance){
		"a signal": func(_ *site, d *testkit.Instance) { d.Signal(syscall.SIGTERM) },
		"a loss": func(s *site, _ *testkit.Instance) {
			db, err := sql.Open("sqlite", "file:"+s.Leases()+"?_pragma=busy_timeout(60000)")
			must.Succeed(s.T, err)
			defer db.Close()
			// With another key in the pool's head, the lease has another secret. The value ends with its checksum.
			var head []byte
			must.Succeed(s.T, db.QueryRow("SELECT value FROM record WHERE key = ?", pool.HeadKey(provider.DefaultPool)).Scan(&head))
			size := len(head) - crc32.Size
			for i := size - 48; i < size; i++ { // the key, and a mark of 16 bytes
				head[i]++
			}
			binary.BigEndian.PutUint32(head[size:], crc32.Checksum(head[:size], crc32.MakeTable(crc32.Castagnoli)))
			_, err = db.Exec("UPDATE record SET value = ? WHERE key = ?", head, pool.HeadKey(provider.DefaultPool))
			must.Succeed(s.T, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			d, out := s.runStart("term=10m", `echo $$; kill -STOP $$; echo went on; exec sleep 600`, "--verify-interval", "100ms")
			pid, err := strconv.Atoi(strings.TrimSpace(out.String()))
			must.Succeed(t, err)
			await.Stopped(t, pid)
			end(s, d)
			if code := d.Code(); code != 128+int(syscall.SIGTERM) {
				t.Errorf("exit code %d\n%s", code, d.Log)
			}
		})
	}
}

// jobControl is a shell script. When its job stops, it says so and continues the job.
const jobControl = `set -m; "$0" "$@"; echo "stopped $?"; fg; echo "code $?"; read more; echo "shell read $more"`

var stoppedByKey = fmt.Sprintf("stopped %d", 128+int(syscall.SIGTSTP))

// Ctrl-Z stops CMD and kazahanad.
func TestSuspendOnATerminal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	on := s.inShell(jobControl, s.runArgs("term=10m", `echo "CMD $$"; read line; echo "got $line"; exit 6`, "-q")...)
	on.awaitFront(on.number("CMD"))
	on.typed(ctrlZ)
	on.heard("stopped")
	on.typed(answer)
	on.heard("got an answer")
	on.heard("code 6")
	on.ends()
}

// Ctrl-Z stops kazahanad before there is a CMD, too.
func TestSuspendOnATerminalWhileWaiting(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	on, _, _ := s.waitingForLock(jobControl)
	job := on.front()
	on.typed(ctrlZ)
	on.heard(stoppedByKey)
	on.awaitFront(job)
	on.typed(ctrlC)
	on.heard("code 130")
	on.ends()
}

// Where no shell could have a stopped job go on, Ctrl-Z stops nothing.
func TestSuspendWithoutJobControl(t *testing.T) {
	t.Parallel()
	const script = `echo "CMD $$"; echo "kazahanad $PPID"; while read line; do echo "got $line"; done`
	for _, under := range []string{"nothing", "a script"} {
		t.Run(under, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			args := s.runArgs("term=10m", script, "-q")
			var on *screen
			if under == "nothing" {
				on = s.onScreen(exec.Command(testkit.Executable(), args...))
			} else {
				on = s.onTerminal(args...)
			}
			pid := on.number("kazahanad")
			on.awaitFront(on.number("CMD"))
			on.typed(ctrlZ + answer)
			on.heard("got an answer")
			must.Succeed(t, syscall.Kill(pid, syscall.SIGTERM))
			if under == "nothing" {
				if code := on.Code(); code != 128+int(syscall.SIGTERM) {
					t.Errorf("exit code %d", code)
				}
				on.closed()
				return
			}
			on.heard("code 143")
			on.ends()
		})
	}
}

// If SIGINT is ignored at the start, as behind & in a script, it ends neither kazahanad nor CMD.
func TestIgnoredInterrupt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const script = `trap 'echo survived; exit 5' USR1; kill -INT $$; echo started; while :; do sleep 0.05; done`
	cmd := exec.Command("sh", append([]string{"-c", `trap "" INT; exec "$0" "$@"`, testkit.Executable()}, s.runArgs("term=10m", script)...)...)
	cmd.Env = s.Environment()
	d, out := s.firstLine(cmd)
	d.Signal(syscall.SIGINT)
	d.Signal(syscall.SIGUSR1)
	if code := d.Code(); code != 5 || out.String() != "started\nsurvived\n" {
		t.Errorf("exit code %d after\n%s%s", code, out, d.Log)
	}
}
