package ring

import "syscall"

// DieWithParent has the kernel send the process a signal when the tests end, so that no
// server outlives them. as is the user that it runs as, nil for the present one.
func DieWithParent(sig syscall.Signal, as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: sig, Credential: as}
}
