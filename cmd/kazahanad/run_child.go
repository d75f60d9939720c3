package main

import (
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/kazahana/kazahana/internal/runner"
)

// passedOn are the signals that CMD gets when this process does. SIGTSTP stops
// both.
var passedOn = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGTSTP,
}

// notifySignals delivers passedOn until stop is called. What was ignored at the
// start, as under nohup, stays so, for CMD too.
func notifySignals() (signals <-chan syscall.Signal, stop func()) {
	raw, out, done := make(chan os.Signal, 16), make(chan syscall.Signal, 16), make(chan struct{})
	for _, sig := range passedOn {
		if !signal.Ignored(sig) {
			signal.Notify(raw, sig)
		}
	}
	// A broken stderr must not end this process, and CMD with it.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	go func() {
		for {
			select {
			case sig := <-raw:
				select {
				case out <- sig.(syscall.Signal):
				default: // nobody reads: more of the same says nothing new
				}
			case <-done:
				return
			}
		}
	}()
	return out, func() {
		signal.Stop(raw)
		signal.Stop(pipe)
		close(done)
	}
}

// child is CMD: a process group of its own, which has the terminal while this
// process does. So Ctrl-C reaches it once, and all that it started can be ended.
type child struct {
	path      string
	argv, env []string
	terminal  bool // this process owns the terminal, and lends it

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
		// The kernel ends CMD when this thread does, see processAttributes; the
		// thread ends with the goroutine, because it stays locked.
		runtime.LockOSThread()
		pid, err := syscall.ForkExec(c.path, c.argv, &syscall.ProcAttr{Env: c.env, Files: stdio(), Sys: processAttributes(c.terminal)})
		// Before anybody waits: CMD may have ended when Start returns.
		c.pid = pid
		began <- err
		if err == nil {
			c.reap(pid)
		}
	}()
	return <-began
}

// reap waits for CMD, and for whatever else is left to this process, which is
// the first of a container as often as not.
func (c *child) reap(pid int) {
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
				continue // Suspend, or somebody who means CMD alone
			}
			select {
			case c.stopped <- struct{}{}:
			default:
			}
		case status.Exited(), status.Signaled():
			// What it leaves behind would go on with the machine ID.
			_ = syscall.Kill(-pid, syscall.SIGKILL)
			c.over.Store(true)
			c.takeTerminal()
			exit := runner.Exit{Code: status.ExitStatus()}
			if status.Signaled() {
				exit = runner.Exit{Signal: status.Signal()}
			}
			c.ended <- exit
			return
		}
	}
}

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

// Suspend implements runner.Program. It returns when somebody sends SIGCONT, as
// shells do with fg and bg.
func (c *child) Suspend() {
	select {
	case <-c.resumed: // of an earlier time
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

// foreground is the process group that has the terminal; 0 when there is none.
func foreground() int {
	group, err := unix.IoctlGetInt(unix.Stdin, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

func setForeground(group int) {
	// A process in the background that sets this is stopped, unless it ignores
	// the signal. CMD must not inherit that, so it lasts for this call only.
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
