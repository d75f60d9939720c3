//go:build !linux

package child

import "syscall"

// processAttributes: only Linux can end CMD when kazahanad is killed.
func processAttributes(t tty, lend bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Foreground: lend, Ctty: int(t)}
}

// adoptOrphans: only on Linux can a process see what CMD leaves behind.
func adoptOrphans() bool { return false }

// parent returns the parent of a process, which only Linux tells.
func parent(int) int { return unknownParent }
