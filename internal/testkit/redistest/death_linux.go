package redistest

import "syscall"

// ParentDeath has the kernel end a child with this process.
func ParentDeath() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
