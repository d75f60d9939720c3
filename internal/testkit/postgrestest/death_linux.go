package postgrestest

import "syscall"

// parentDeath has the kernel end a child with this process.
func parentDeath() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
}
