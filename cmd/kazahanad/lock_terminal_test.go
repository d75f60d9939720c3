package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/kazahana/kazahana/internal/lock"
	"github.com/kazahana/kazahana/internal/testkit"
	"github.com/kazahana/kazahana/internal/testkit/await"
)

// screen is a terminal with the processes in front of it.
type screen struct {
	*testkit.Instance
	outside, inside *os.File
	said            testkit.Log
	heardAll        <-chan struct{}
}

// interruptible is a shell that runs kazahanad, says the exit code, and goes on to read a
// line.
const interruptible = `trap : INT; "$0" "$@"; echo "code $?"; read more; echo "shell read $more"`

// onTerminal runs kazahanad from a shell that has a terminal to itself.
func (s *site) onTerminal(args ...string) *screen {
	s.T.Helper()
	return s.inShell(interruptible, args...)
}

// inShell runs a shell that has a terminal to itself. Its script finds kazahanad in "$0" "$@".
func (s *site) inShell(script string, args ...string) *screen {
	s.T.Helper()
	return s.onScreen(exec.Command("sh", append([]string{"-c", script, testkit.Executable()}, args...)...))
}

// onScreen runs a command that has a terminal to itself.
func (s *site) onScreen(cmd *exec.Cmd) *screen {
	s.T.Helper()
	outside, inside := terminal(s.T)
	cmd.Env = s.Environment()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inside, inside, inside
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	on := &screen{Instance: s.LaunchCommand(cmd), outside: outside, inside: inside}
	on.heardAll = collect(outside, &on.said)
	return on
}

func (on *screen) heard(text string) {
	on.T.Helper()
	await.Eventually(on.T, "the terminal shows "+text, func() bool { return strings.Contains(on.said.String(), text) })
}

func (on *screen) typed(text string) { _, _ = on.outside.WriteString(text) }

// ctrlC is what the key sends.
const ctrlC = "\x03"

// ends has the shell, which got its terminal back, read a line and end.
func (on *screen) ends() {
	on.T.Helper()
	on.typed("another\n")
	on.heard("shell read another")
	on.AwaitEnd()
	on.closed()
}

// closed returns when the last process that had the terminal has ended.
func (on *screen) closed() {
	_ = on.inside.Close()
	<-on.heardAll
}

// On a terminal Ctrl-C reaches CMD, once, and what CMD makes of it is the exit code.
func TestLockOnATerminal(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ script, after, code string }{
		"caught": {`trap 'echo interrupted; n=$((n+1))' INT; echo started; until read line; do :; done; echo "read $line $n"; exit 6`, "interrupted", "code 6"},
		"fatal":  {`echo started; exec sleep 600`, "code 130", "code 130"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.Start()
			c := s.Dial()
			on := s.onTerminal(s.lockArgs("k", test.script, "-q")...)
			on.heard("started")
			c.WantLock("k", lock.Active, 1)
			on.typed(ctrlC)
			on.heard(test.after)
			if name == "caught" {
				c.WantLock("k", lock.Active, 1) // CMD goes on, and so does the lock
				on.typed("a line\n")
				on.heard("read a line 1")
			}
			on.heard(test.code)
			c.WantLock("k", lock.Released, 1)
			on.ends()
		})
	}
}

// waitingForLock runs kazahanad lock in a shell on a terminal, and returns when it waits for a
// lock that the client holds.
func (s *site) waitingForLock(script string) (on *screen, c *testkit.Client, held lock.Answer) {
	s.T.Helper()
	s.Start()
	c = s.Dial()
	c.Must("Lock.Acquire", &held, "k", map[string]any{"ttl_ms": 600_000})
	on = s.inShell(script, s.lockArgs("k", "echo ran", "--wait", "1h")...)
	on.heard("acquiring lock")
	await.Eventually(s.T, "it waits", func() bool { return c.Status().InFlight == 1 })
	return on, c, held
}

// Ctrl-C while waiting for the lock ends the wait, and leaves nothing behind.
func TestLockOnATerminalInterruptedWhileWaiting(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	on, c, held := s.waitingForLock(interruptible)
	on.typed(ctrlC)
	on.heard("code 130")
	await.Eventually(t, "nobody waits", func() bool { return c.Status().InFlight == 0 })
	c.Must("Lock.Release", nil, "k", map[string]any{"lease_id": held.LeaseID})
	c.WantLock("k", lock.Released, 1)
	on.ends()
	if strings.Contains(on.said.String(), "ran\r\n") {
		t.Errorf("CMD ran:\n%s", on.said.String())
	}
}

// A signal that comes as the lock is granted: whichever is first, no one has the lock in the end.
func TestLockInterruptedAsItIsGranted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.Start()
	c := s.Dial()
	for token := int64(1); token < 8; {
		var held lock.Answer
		c.Must("Lock.Acquire", &held, "k", map[string]any{"ttl_ms": 600_000, "wait_ms": 10_000}) // less than what a lost one would last
		token = held.FencingToken
		waiter := s.LaunchCommand(s.Command(s.lockArgs("k", "exec sleep 600", "--wait", "1h")...))
		c.AwaitWaiters(1, waiter)
		granted := make(chan struct{})
		go func() {
			defer close(granted)
			c.Must("Lock.Release", nil, "k", map[string]any{"lease_id": held.LeaseID})
		}()
		_ = waiter.Cmd.Process.Signal([]os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}[token%3])
		<-granted
		if code := waiter.Code(); code <= 128 {
			t.Errorf("it ended with %v\n%s", waiter.Cmd.ProcessState, waiter.Log)
		}
		// The daemon releases a lock without a holder by itself, a moment later.
		await.Eventually(t, "nobody waits", func() bool { return c.Status().InFlight == 0 })
		var l lock.Answer
		await.Eventually(t, "nobody holds the lock", func() bool { l = c.LockOf("k"); return l.State != lock.Active })
		if l.State != lock.Released { // but ran out by itself
			t.Fatalf("after the signal the lock is %+v\n%s", l, waiter.Log)
		}
	}
}
