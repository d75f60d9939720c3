//go:build !linux

package etcd

import "syscall"

func parentDeath() *syscall.SysProcAttr { return nil }
