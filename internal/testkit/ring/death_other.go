//go:build !linux

package ring

import "syscall"

// DieWithParent works on Linux only. Elsewhere the cleanup of the tests ends the
// processes.
func DieWithParent(_ syscall.Signal, as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: as}
}
