//go:build !linux

package main

import "syscall"

// dieWithParent is a wish that only Linux grants; elsewhere the tests' own
// cleanup has to do.
func dieWithParent(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: as}
}
