//go:build !linux

package main

import "syscall"

// processAttributes: only Linux can end CMD when kazahanad is killed.
func processAttributes(terminal bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Foreground: terminal, Ctty: 0}
}

// adoptOrphans: only on Linux can a process see what CMD leaves behind.
func adoptOrphans() bool { return false }
