package main

import "syscall"

// dieWithParent has the kernel end the process when the tests end in whatever
// way, so that no daemon outlives them.
func dieWithParent(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: as}
}
