package testkit

import "syscall"

// DieWithParent makes the kernel kill the process when the tests end, so that no
// daemon outlives them.
func DieWithParent(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: as}
}
