//go:build !linux

package redistest

import "syscall"

// ParentDeath is for systems that cannot do it.
func ParentDeath() *syscall.SysProcAttr { return nil }
