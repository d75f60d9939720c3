//go:build !linux

package postgrestest

import "syscall"

func parentDeath() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
