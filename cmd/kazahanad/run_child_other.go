//go:build !linux

package main

import "syscall"

// processAttributes: only Linux can end CMD when kazahanad is killed.
func processAttributes(terminal bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Foreground: terminal, Ctty: 0}
}
