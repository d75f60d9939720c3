//go:build !linux

package redis

import "syscall"

func parentDeath() *syscall.SysProcAttr { return nil }
