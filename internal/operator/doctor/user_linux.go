package doctor

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// As runs a probe with a user's rights, as far as this process can take them: root can. It
// reports whether the probe had them; gid -1 is not known. The probe must do
// its work in the goroutine that calls it.
func As(uid, gid int, groups []int, probe func()) (ok bool) {
	if unix.Geteuid() != 0 || uid == 0 {
		probe()
		return uid == unix.Geteuid()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		ok = gid >= 0 && become(uid, gid, groups)
		probe()
	}()
	<-done
	return ok
}

// become changes this thread alone. Functions of package syscall would change all of them.
func become(uid, gid int, groups []int) bool {
	all := make([]uint32, len(groups)+1)
	all[0] = uint32(gid)
	for i, g := range groups {
		all[i+1] = uint32(g)
	}
	_, _, failed := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(all)), uintptr(unsafe.Pointer(&all[0])), 0)
	if failed == 0 {
		_, _, failed = unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid))
	}
	if failed == 0 {
		_, _, failed = unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
	}
	return failed == 0
}

// GroupsOf are a process's groups; -1 and nil if they cannot be read.
func GroupsOf(pid int) (gid int, groups []int) {
	own := statusOf(pid, "Gid:")
	if len(own) < 4 {
		return -1, nil
	}
	gid, err := strconv.Atoi(own[1]) // real, effective, saved, of files
	if err != nil {
		return -1, nil
	}
	for _, text := range append(statusOf(pid, "Groups:"), own[1]) {
		if g, err := strconv.Atoi(text); err == nil {
			groups = append(groups, g)
		}
	}
	return gid, groups
}

// statusOf are the words of a line of a process's status.
func statusOf(pid int, key string) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // without it nothing is known
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			return strings.Fields(rest)
		}
	}
	return nil
}
