package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// processAttributes has the kernel kill CMD when kazahanad ends in whatever way:
// nobody would extend its lease any more, nor end it in time.
func processAttributes(terminal bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Foreground: terminal, Ctty: 0, Pdeathsig: syscall.SIGKILL}
}

// adoptOrphans has the kernel make this process the parent of every process that
// CMD leaves behind, also of those that have left its group and session. It reports
// whether that was done.
func adoptOrphans() bool { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == nil }
