package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// The event loop's thread goes before all others of the daemon. Without a loop none does.
func TestLoopGoesFirst(t *testing.T) {
	t.Parallel()
	usual, err := unix.SchedGetAttr(0, 0)
	const nicest = 19
	if err != nil || usual.Policy != unix.SCHED_NORMAL || usual.Nice == nicest {
		t.Skipf("no thread can be lowered here: %v", err)
	}
	for _, loop := range []bool{true, false} {
		s := newSite(t)
		d := s.Start("--event-loop=" + strconv.FormatBool(loop))
		s.Dial().ID()
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", d.PID()))
		must.Succeed(t, err)
		first, lower := 0, 0
		for _, path := range threads {
			id, err := strconv.Atoi(filepath.Base(path))
			must.Succeed(t, err)
			switch a, err := unix.SchedGetAttr(id, 0); {
			case err != nil: // it has ended
			case a.Nice == usual.Nice:
				first++
			default:
				lower++
			}
		}
		if ok := loop && first == 1 && lower > 0 || !loop && first > 0 && lower == 0; !ok {
			t.Errorf("event loop %t: %d threads have the usual priority, and %d another", loop, first, lower)
		}
	}
}
