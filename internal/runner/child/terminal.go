package child

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tty is a file descriptor of this process's controlling terminal.
type tty int

const noTTY tty = -1

func openTTY() tty {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return noTTY
	}
	return tty(fd)
}

func (t tty) close() {
	if t != noTTY {
		_ = unix.Close(int(t))
	}
}

// inFront reports whether the process group has the terminal.
func (t tty) inFront(group int) bool {
	front, err := unix.IoctlGetInt(int(t), unix.TIOCGPGRP)
	return err == nil && front == group
}

func (t tty) giveTo(group int) { _ = unix.IoctlSetPointerInt(int(t), unix.TIOCSPGRP, group) }

// takeFrom takes back the terminal if it was lent to the group.
func (t tty) takeFrom(group int) {
	if t.inFront(group) {
		t.giveTo(unix.Getpgrp())
	}
}

// suspendGrace is how long this process may take to stop itself. It does not stop where a program
// such as a debugger keeps the signal from it.
const suspendGrace = 10 * time.Second

// Suspend implements runner.Program. It returns at SIGCONT, which shells send for fg
// and bg. Without a terminal the signal is CMD's affair alone.
func (c *Child) Suspend(by syscall.Signal) (goOn bool) {
	if c.tty == noTTY {
		c.Signal(by)
		return false
	}
	wants := by == syscall.SIGTTIN || by == syscall.SIGTTOU // to read from the terminal, or to change it
	c.lend = wants && c.tty.inFront(unix.Getpgrp())
	if c.lend {
		return true
	}
	if !underJobControl() {
		// Another job has the terminal, and CMD would stop again at once.
		return !wants || c.tty.inFront(c.pid)
	}
	select {
	case <-c.resumed: // left from an earlier SIGCONT
	default:
	}
	c.send(-c.pid, syscall.SIGSTOP)
	c.tty.takeFrom(c.pid)
	_ = syscall.Kill(0, syscall.SIGSTOP) // the whole job, as Ctrl-Z would
	select {
	case <-c.resumed:
	case <-time.After(suspendGrace):
	}
	return true
}

// Resume implements runner.Program.
func (c *Child) Resume() {
	if (c.owns || c.lend) && c.tty.inFront(unix.Getpgrp()) {
		c.tty.giveTo(c.pid)
	}
	c.send(-c.pid, syscall.SIGCONT)
}

// underJobControl reports whether a process could have this one go on after a stop: one of
// this session, outside of this process group, that has started a process of the group.
// Without one the group is orphaned, and the kernel discards Ctrl-Z.
func underJobControl() bool {
	group := unix.Getpgrp()
	session, err := unix.Getsid(0)
	if err != nil {
		return false
	}
	pid := unix.Getppid()
	for pid > 0 {
		its, err := unix.Getpgid(pid)
		if err != nil {
			return false
		}
		if its != group {
			theirs, err := unix.Getsid(pid)
			return err == nil && theirs == session
		}
		pid = parent(pid)
	}
	return pid == unknownParent
}

// unknownParent is what parent returns where it cannot tell. A parent in another namespace
// is 0.
const unknownParent = -1
