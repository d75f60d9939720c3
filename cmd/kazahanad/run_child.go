package main

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

// child is CMD in a process group of its own, which gets the terminal if this
// process has it. So Ctrl-C reaches CMD once, and the whole group can be ended.
type child struct {
	path      string
	argv, env []string
	terminal  bool // this process owns the terminal, and lends it
	orphans   bool // adopt the processes that CMD leaves behind

	pid     int // of CMD and of its group; set by Start
	over    atomic.Bool
	ended   chan runner.Exit
	stopped chan struct{}
	resumed chan os.Signal
}

func newChild(path string, argv, env []string) *child {
	c := &child{
		path: path, argv: argv, env: env,
		terminal: term.IsTerminal(unix.Stdin) && term.IsTerminal(unix.Stdout) && foreground() == unix.Getpgrp(),
		ended:    make(chan runner.Exit, 1), stopped: make(chan struct{}, 1), resumed: make(chan os.Signal, 1),
	}
	signal.Notify(c.resumed, syscall.SIGCONT)
	return c
}

func (c *child) close() { signal.Stop(c.resumed) }

// Start implements runner.Program.
func (c *child) Start() error {
	began := make(chan error)
	go func() {
		// The kernel ends CMD when this thread ends, see processAttributes. The
		// thread stays locked, so it ends with the goroutine.
		runtime.LockOSThread()
		adopted := c.orphans && adoptOrphans()
		pid, err := syscall.ForkExec(c.path, c.argv, &syscall.ProcAttr{Env: c.env, Files: stdio(), Sys: processAttributes(c.terminal)})
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
func (c *child) reap(pid int, adopted bool) runner.Exit {
	options := 0
	if c.terminal {
		options = unix.WUNTRACED
	}
	for {
		var status syscall.WaitStatus
		which, err := syscall.Wait4(-1, &status, options, nil)
		switch {
		case err == syscall.EINTR || err == nil && which != pid:
		case err != nil:
			panic("wait4 has lost the command: " + err.Error())
		case status.Stopped():
			if status.StopSignal() == syscall.SIGSTOP {
				continue // by Suspend, or by a signal to CMD alone
			}
			select {
			case c.stopped <- struct{}{}:
			default:
			}
		case status.Exited(), status.Signaled():
			// Processes that CMD leaves behind would go on using the machine ID.
			_ = syscall.Kill(-pid, syscall.SIGKILL)
			c.over.Store(true)
			c.takeTerminal()
			exit := runner.Exit{Code: status.ExitStatus(), Alone: adopted && awaitAlone(pid)}
			if status.Signaled() {
				exit.Code, exit.Signal = 0, status.Signal()
			}
			return exit
		}
	}
}

// Time limits for CMD's processes to vanish: first those of its group, which are
// killed, then those that have left the group.
const (
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
func (c *child) send(target int, sig syscall.Signal) {
	if !c.over.Load() {
		_ = syscall.Kill(target, sig)
	}
}

// Signal implements runner.Program.
func (c *child) Signal(sig syscall.Signal) { c.send(c.pid, sig) }

// Terminate implements runner.Program.
func (c *child) Terminate() { c.send(-c.pid, syscall.SIGTERM) }

// Kill implements runner.Program.
func (c *child) Kill() { c.send(-c.pid, syscall.SIGKILL) }

// Ended implements runner.Program.
func (c *child) Ended() <-chan runner.Exit { return c.ended }

// Stopped implements runner.Program.
func (c *child) Stopped() <-chan struct{} { return c.stopped }

// Suspend implements runner.Program. It returns at SIGCONT, which shells send for fg
// and bg.
func (c *child) Suspend() {
	select {
	case <-c.resumed: // left from an earlier SIGCONT
	default:
	}
	c.send(-c.pid, syscall.SIGSTOP)
	c.takeTerminal()
	target := unix.Getpid()
	if c.terminal {
		target = 0 // the whole job, as Ctrl-Z would
	}
	_ = syscall.Kill(target, syscall.SIGSTOP)
	<-c.resumed
}

// Resume implements runner.Program.
func (c *child) Resume() {
	if c.terminal && foreground() == unix.Getpgrp() {
		setForeground(c.pid)
	}
	c.send(-c.pid, syscall.SIGCONT)
}

// foreground is the process group that has the terminal, or 0.
func foreground() int {
	group, err := unix.IoctlGetInt(unix.Stdin, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

func setForeground(group int) {
	// The kernel stops a background process that does this, unless it ignores
	// SIGTTOU. CMD must not inherit that, so it lasts for this call only.
	signal.Ignore(syscall.SIGTTOU)
	_ = unix.IoctlSetPointerInt(unix.Stdin, unix.TIOCSPGRP, group)
	signal.Reset(syscall.SIGTTOU)
}

// takeTerminal takes back the terminal that was lent to CMD.
func (c *child) takeTerminal() {
	if c.terminal && foreground() == c.pid {
		setForeground(unix.Getpgrp())
	}
}
