package sqlitefile

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

const (
	freezes       = 20
	freezeWriters = 8
)

// A shell freezes, looks and thaws: should this process stand still, it goes on
// after the thaw, and the test fails. It prints what each thread that waits in the
// kernel waits in: -1 is no system call. A page fault can wait for something else, such
// as a page of this program from another disk, and then it ends while the disk is
// frozen: so the shell looks again. It says when the disk is frozen.
const freezeScript = `waiting() {
	for task in /proc/"$1"/task/*; do
		! grep -q '^State:.D' "$task/status" || cat "$task/syscall"
	done
}
fsfreeze -f "$1" && echo frozen && sleep 0.1
seen=$(waiting "$2")
for look in $(seq 100); do
	case $seen in *-1\ *) sleep 0.1; seen=$(waiting "$2") ;; *) break ;; esac
done
test -z "$seen" || echo "$seen"
fsfreeze -u "$1"`

// TestFrozenDiskHoldsUpSystemCallsOnly: whenever a disk is frozen under writers, no
// thread waits for it in a page fault, for which the whole process would wait with
// its next garbage collection.
func TestFrozenDiskHoldsUpSystemCallsOnly(t *testing.T) {
	ring.All(t)
	for name, owned := range map[string]bool{"shared": false, "owned": true} {
		t.Run(name, func(t *testing.T) {
			kind := noteKind
			kind.Owned = owned
			writersOnAFrozenDisk(t, &kind)
		})
	}
}

func writersOnAFrozenDisk(t *testing.T, kind *Kind) {
	disk := disktest.Ext4(t)
	f := openOf(t, kind, filepath.Join(disk.Dir(), "notes.db"), Options{})
	ctx, stop := context.WithCancel(context.Background())
	var writers sync.WaitGroup
	for i := range freezeWriters {
		writers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				// Whether it is written is not the question.
				_ = f.Write(ctx, func(t *Tx) error { return note(t, fmt.Sprint(i, " ", n)) })
			}
		})
	}
	defer writers.Wait()
	defer stop()
	held := 0
	for n := range freezes {
		time.Sleep(time.Duration(n) * time.Millisecond) // in another place each time
		held += freezeOnce(t, disk)
	}
	if held == 0 {
		t.Errorf("none of %d freezes held up anything", freezes)
	}
}

// freezeOnce freezes the disk for a moment, and returns how many threads waited for the thaw.
func freezeOnce(t *testing.T, disk *disktest.Disk) (held int) {
	t.Helper()
	cmd := exec.Command("sh", "-c", freezeScript, "sh", disk.Dir(), fmt.Sprint(os.Getpid()))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must.Succeed(t, err)
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatalf("the disk was not frozen: %v", cmd.Wait())
	}
	for lines.Scan() {
		held++
		if strings.HasPrefix(lines.Text(), "-1 ") {
			t.Errorf("a thread waits in a page fault: %s", lines.Text())
		}
	}
	must.Succeed(t, cmd.Wait())
	return held
}
