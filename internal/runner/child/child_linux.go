package child

import (
	"bytes"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// processAttributes makes the kernel kill CMD when kazahanad ends in any way: no
// process would extend CMD's lease, or end CMD before the lease ends.
func processAttributes(t tty, lend bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Foreground: lend, Ctty: int(t), Pdeathsig: syscall.SIGKILL}
}

// adoptOrphans makes this process the parent of every process that CMD leaves
// behind, also outside of its group and session. It reports whether it succeeded.
func adoptOrphans() bool { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == nil }

// parent returns the parent of a process.
func parent(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return unknownParent
	}
	var state string
	ppid := unknownParent
	_, _ = fmt.Sscan(string(stat[bytes.LastIndexByte(stat, ')')+1:]), &state, &ppid)
	return ppid
}
