package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// processAttributes makes the kernel kill CMD when kazahanad ends in any way: no
// process would extend CMD's lease, or end CMD before the lease ends.
func processAttributes(terminal bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Foreground: terminal, Ctty: 0, Pdeathsig: syscall.SIGKILL}
}

// adoptOrphans makes this process the parent of every process that CMD leaves
// behind, also of those that have left its group and session. It reports whether it
// succeeded.
func adoptOrphans() bool { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == nil }
