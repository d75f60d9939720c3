//go:build linux

package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime is what all threads of a process have had of the processors, to the
// nanosecond: the files in /proc count in hundredths of a second, or only one
// thread.
func CPUTime(pid int) (time.Duration, error) {
	// The clock of a process, as clock_getcpuclockid(3) makes it.
	const schedulersView = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedulersView), &t); err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// Resident is how many bytes of a process are in memory.
func Resident(pid int) (int64, error) { return status(pid, "VmRSS") }

// Own is how many of them are the process's own: no pages of files, which the kernel
// can drop and read again.
func Own(pid int) (int64, error) { return status(pid, "RssAnon") }

// status is a line of /proc/PID/status in bytes.
func status(pid int, name string) (int64, error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	_, rest, found := bytes.Cut(text, []byte("\n"+name+":"))
	fields := bytes.Fields(rest)
	if !found || len(fields) < 2 || string(fields[1]) != "kB" {
		return 0, fmt.Errorf("%s has no %s", path, name)
	}
	kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
	return kib << 10, err
}

// AllowOpenFiles raises the limit of open files of this process, and of those
// that it starts, if it is lower than n.
func AllowOpenFiles(n int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	need := uint64(n)
	if limit.Cur >= need {
		return nil
	}
	raised := unix.Rlimit{Cur: need, Max: max(limit.Max, need)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err != nil {
		return fmt.Errorf("%d open files are needed, and the limit is %d (ulimit -Hn): %w", n, limit.Max, err)
	}
	return nil
}
