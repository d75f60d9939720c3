// Package await waits in tests for a condition, however slow the machine is.
package await

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const (
	// Patience is how long anything may take on a machine that is busy with other
	// things. Only a test that fails waits for so long.
	Patience = 2 * time.Minute
	// Interval is the time from one look at a condition to the next.
	Interval = 5 * time.Millisecond
)

// Eventually returns when ok reports true.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !ok(); time.Sleep(Interval) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s:\n%s", Patience, what, Stacks())
		}
	}
}

// Stacks shows what every goroutine of this process does.
func Stacks() string {
	buf := make([]byte, 4<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// Success returns when try returns no error.
func Success(t testing.TB, what string, try func() error) {
	t.Helper()
	for deadline := time.Now().Add(Patience); ; time.Sleep(Interval) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s: %v", Patience, what, err)
		}
	}
}

// Late makes a call that hangs, with a deadline that it misses, and checks its error. On a busy
// machine the deadline may pass before the call has begun, which is another error: the next call
// has more time.
func Late(t testing.TB, what string, call func(context.Context) error, right func(error) bool) {
	t.Helper()
	for limit := 50 * time.Millisecond; ; limit *= 4 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err := call(ctx)
		cancel()
		if right(err) {
			return
		}
		if err == nil || limit > 10*time.Second {
			t.Errorf("%s: with a deadline after %v the error is %v", what, limit, err)
			return
		}
	}
}

// Main is the TestMain of a package with tests that leave no goroutine behind.
func Main(m *testing.M) { os.Exit(Run(m, func() {})) }

// Run runs the tests of a package, then end, and returns the exit code, which is not 0
// where goroutines are left.
func Run(m *testing.M, end func()) int {
	code := m.Run()
	end()
	if code != 0 {
		return code
	}
	err := goleak.Find()
	for deadline := time.Now().Add(Patience); err != nil && time.Now().Before(deadline); err = goleak.Find() {
		time.Sleep(Interval)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "goroutines are left:", err)
		code = 1
	}
	return code
}

// Stopped returns when a process that was sent SIGSTOP has stopped: its other threads go on until
// the thread with the signal has run. Without /proc it returns at once.
func Stopped(t testing.TB, pid int) {
	t.Helper()
	Eventually(t, "the process has stopped", func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, thread := range threads {
			stat, err := os.ReadFile(thread)
			if at := strings.LastIndex(string(stat), ") "); err == nil && at >= 0 && !strings.HasPrefix(string(stat[at:]), ") T") {
				return false
			}
		}
		return true
	})
}
