//go:build !linux

package etcdtest

import "syscall"

func parentDeath() *syscall.SysProcAttr { return nil }
