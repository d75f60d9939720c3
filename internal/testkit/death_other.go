//go:build !linux

package testkit

import "syscall"

// DieWithParent works on Linux only. Elsewhere the cleanup of the tests ends the
// processes.
func DieWithParent(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: as}
}
