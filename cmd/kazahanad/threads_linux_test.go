package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit/await"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

// The threads of the event loops go before all others of the daemon. Without a loop none does.
func TestLoopGoesFirst(t *testing.T) {
	t.Parallel()
	usual, err := unix.SchedGetAttr(0, 0)
	const nicest = 19
	if err == nil {
		err = unix.SchedSetAttr(0, usual, 0)
	}
	if err != nil || usual.Policy != unix.SCHED_NORMAL || usual.Nice == nicest {
		t.Skipf("no thread can be lowered here: %v", err)
	}
	for name, test := range map[string]struct {
		args  []string
		loops int
	}{
		"one loop": {nil, 1},
		"two":      {[]string{"--memcached-listen=unix:" + filepath.Join(t.TempDir(), "m")}, 2},
		"none":     {[]string{"--event-loop=false"}, 0},
	} {
		s := newSite(t)
		d := s.Start(test.args...)
		await.Eventually(t, name+": the loops have the usual priority, and all others a lower one", func() bool {
			s.Dial().ID()
			first, lower := priorities(t, d.PID(), usual.Nice)
			return test.loops == 0 && first > 0 && lower == 0 || test.loops > 0 && first == test.loops && lower > 0
		})
	}
}

// priorities is how many threads of a process have the usual priority, and how many another.
func priorities(t *testing.T, pid int, usual int32) (first, lower int) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	must.Succeed(t, err)
	for _, path := range threads {
		id, err := strconv.Atoi(filepath.Base(path))
		must.Succeed(t, err)
		switch a, err := unix.SchedGetAttr(id, 0); {
		case err != nil: // it has ended
		case a.Nice == usual:
			first++
		default:
			lower++
		}
	}
	return first, lower
}
