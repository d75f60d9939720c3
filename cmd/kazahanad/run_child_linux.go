package main

import "syscall"

// processAttributes has the kernel kill CMD when kazahanad ends in whatever way:
// nobody would extend its lease any more, nor end it in time.
func processAttributes(terminal bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Foreground: terminal, Ctty: 0, Pdeathsig: syscall.SIGKILL}
}
