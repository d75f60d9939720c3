package doctor

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// As runs the steps with a user's rights, or reports that this process cannot take them: root
// can. The steps do their work in the goroutine that calls them.
func As(who Account, steps func()) (ok bool) {
	if who.UID == unix.Geteuid() {
		steps()
		return true
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if ok = len(who.Groups) > 0 && unix.Geteuid() == 0 && become(who); ok {
			steps()
		}
	}()
	<-done
	return ok
}

// AsBefore runs a probe with the rights that this process had before As.
func AsBefore(probe func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		probe()
	}()
	<-done
}

// become changes this thread alone. Functions of package syscall would change all of them.
func become(who Account) bool {
	all := make([]uint32, len(who.Groups))
	for i, g := range who.Groups {
		all[i] = uint32(g)
	}
	uid, gid := uintptr(who.UID), uintptr(all[0])
	_, _, failed := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(all)), uintptr(unsafe.Pointer(&all[0])), 0)
	if failed == 0 {
		_, _, failed = unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid)
	}
	if failed == 0 {
		_, _, failed = unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid)
	}
	return failed == 0
}

// AccountOf is a process's; its groups are empty if they cannot be read.
func AccountOf(pid int) (who Account) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	fields := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		fields[name] = strings.Fields(rest)
	}
	if own := fields["Gid"]; len(own) > 1 { // real, effective, saved, of files
		who.Groups = numbers(append(own[1:2], fields["Groups"]...))
	}
	return who
}

// ProbeClock asks the kernel about its clock.
func ProbeClock() (c Clock) {
	var t unix.Timex // no mode is set, so nothing is adjusted
	status, err := unix.Adjtimex(&t)
	c.Known = err == nil
	c.Synchronised = c.Known && status != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0
	return c
}
