package child

import (
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/kazahana/kazahana/internal/runner"
)

// Child is CMD in a process group of its own, which is lent the terminal if this
// process has it. So Ctrl-C reaches CMD once, and the whole group can be ended.
type Child struct {
	path      string
	argv, env []string
	tty       tty
	owns      bool // CMD has the terminal whenever the job has it, and not only on demand
	Orphans   bool // adopt the processes that CMD leaves behind

	pid     int         // of CMD and of its group; set by Start
	lend    bool        // the terminal at Resume
	reaped  atomic.Bool // CMD has ended, and another process may get its PID
	over    atomic.Bool // so has its group
	ended   chan runner.Exit
	stopped chan syscall.Signal
	silence func() // job control's signals; nil before Start
	resumed chan os.Signal
}

// New returns a CMD that has not started. A Close must follow.
func New(path string, argv, env []string) *Child {
	c := &Child{
		path: path, argv: argv, env: env, tty: openTTY(),
		owns:  term.IsTerminal(unix.Stdin) && term.IsTerminal(unix.Stdout),
		ended: make(chan runner.Exit, 1), stopped: make(chan syscall.Signal, 1), resumed: make(chan os.Signal, 1),
	}
	signal.Notify(c.resumed, syscall.SIGCONT)
	return c
}

// Close gives back what New and Start have taken, after CMD has ended or failed to start.
func (c *Child) Close() {
	signal.Stop(c.resumed)
	if c.silence != nil {
		c.silence()
	}
	c.tty.close()
}

// Start implements runner.Program.
func (c *Child) Start() error {
	began := make(chan error)
	lend := c.owns && c.tty.inFront(unix.Getpgrp())
	// Until now Ctrl-Z has stopped this process. From now on it has to stop CMD as well.
	if c.tty == noTTY {
		c.silence = deliver(c.stopped, jobSignals...)
	} else {
		c.silence = deliver(c.stopped, syscall.SIGTSTP, syscall.SIGTTIN)
	}
	go func() {
		// The kernel ends CMD when this thread ends, see processAttributes. The
		// thread stays locked, so it ends with the goroutine.
		runtime.LockOSThread()
		adopted := c.Orphans && adoptOrphans()
		pid, err := syscall.ForkExec(c.path, c.argv, &syscall.ProcAttr{Env: c.env, Files: []uintptr{os.Stdin.Fd(), os.Stdout.Fd(), os.Stderr.Fd()}, Sys: processAttributes(c.tty, lend)})
		if c.tty != noTTY {
			// While CMD has the terminal, the kernel would stop this process when it writes to
			// it or takes it back. CMD must not inherit that.
			signal.Ignore(syscall.SIGTTOU)
		}
		// Set before Start returns: CMD may have ended by then.
		c.pid = pid
		began <- err
		if err == nil {
			c.ended <- c.reap(pid, adopted)
		}
	}()
	return <-began
}

// reap waits for CMD, and for orphans that the kernel hands to this process, which
// is often the first one of a container.
func (c *Child) reap(pid int, adopted bool) runner.Exit {
	for {
		var status syscall.WaitStatus
		which, err := syscall.Wait4(-1, &status, unix.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR || err == nil && which != pid:
		case err != nil:
			panic("wait4 has lost the command: " + err.Error())
		case status.Stopped():
			if status.StopSignal() == syscall.SIGSTOP || c.tty == noTTY {
				continue // by Suspend, or by a signal to CMD alone
			}
			select {
			case c.stopped <- status.StopSignal():
			default:
			}
		case status.Exited(), status.Signaled():
			c.reaped.Store(true)
			c.endGroup(pid)
			c.over.Store(true)
			c.tty.takeFrom(pid)
			exit := runner.Exit{Code: status.ExitStatus(), Alone: adopted && awaitAlone(pid)}
			if status.Signaled() {
				exit.Code, exit.Signal = 0, status.Signal()
			}
			return exit
		}
	}
}

// endGroup ends the processes of CMD's group that CMD leaves behind: they would go on using
// the machine ID. Often one of them is the program itself, behind npm or a shell, and needs
// time to end well. Until it has ended, the machine ID is still extended.
func (c *Child) endGroup(group int) {
	c.Terminate()
	for until := time.Now().Add(endGrace); time.Now().Before(until) && syscall.Kill(-group, 0) == nil; {
		if pid, _ := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 {
			time.Sleep(childPoll)
		}
	}
	c.Kill()
}

// Time limits for CMD's processes to vanish: the processes of its group after SIGTERM, then
// after SIGKILL, then the ones outside of the group. Docker and supervisord kill kazahanad
// after 10 seconds, and with it the last chance to end the group.
const (
	endGrace      = 8 * time.Second
	groupGrace    = 10 * time.Second
	detachedGrace = time.Second
)

// awaitAlone reports whether all processes that CMD started have ended within these
// limits. Otherwise they would be children of this process.
func awaitAlone(group int) bool {
	killed := time.Now()
	groupSeen := killed
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		switch {
		case err == syscall.ECHILD:
			return true
		case err == syscall.EINTR || err == nil && pid > 0:
			continue
		case err != nil:
			return false
		}
		now := time.Now()
		if syscall.Kill(-group, 0) == nil {
			groupSeen = now
		}
		if now.Sub(killed) > groupGrace || now.Sub(groupSeen) > detachedGrace {
			return false
		}
		time.Sleep(childPoll)
	}
}

// childPoll is how often awaitAlone looks.
const childPoll = 5 * time.Millisecond

// send sends a signal to CMD, or to its whole group.
func (c *Child) send(target int, sig syscall.Signal) {
	if !c.over.Load() {
		_ = syscall.Kill(target, sig)
	}
}

// Signal implements runner.Program. When CMD has ended, the rest of its group gets the signal.
func (c *Child) Signal(sig syscall.Signal) {
	target := c.pid
	if c.reaped.Load() {
		target = -c.pid
	}
	c.send(target, sig)
	if runner.Ends(sig) {
		c.send(-c.pid, syscall.SIGCONT) // or the signal waits as long as CMD is stopped
	}
}

// Terminate implements runner.Program.
func (c *Child) Terminate() {
	c.send(-c.pid, syscall.SIGTERM)
	c.send(-c.pid, syscall.SIGCONT)
}

// Kill implements runner.Program.
func (c *Child) Kill() { c.send(-c.pid, syscall.SIGKILL) }

// Ended implements runner.Program.
func (c *Child) Ended() <-chan runner.Exit { return c.ended }

// Stopped implements runner.Program.
func (c *Child) Stopped() <-chan syscall.Signal { return c.stopped }
