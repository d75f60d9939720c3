package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
)

func TestSecondProcessIsRefused(t *testing.T) {
	dir, _ := newState(t)
	holder := startChild(t, "hold", dir, nil)
	if line, err := holder.stdout.ReadString('\n'); line != "ready\n" {
		t.Fatalf("the child said %q, %v", line, err)
	}
	decide := func(ServiceReport) (tl snowflake.Timeline, err error) { return tl, errors.New("asked") }
	for what, try := range map[string]func() error{
		"Open":           func() error { _, err := Open(dir, testOptions()); return err },
		"ResetFloor":     func() error { _, err := ResetFloor(dir, "", resetTo, testOptions()); return err },
		"AcceptTimeline": func() error { return AcceptTimeline(dir, "default", testOptions(), decide) },
	} {
		err := try()
		var locked *LockedError
		if !errors.As(err, &locked) {
			t.Errorf("%s: %v, want a LockedError", what, err)
			continue
		}
		if locked.PID != holder.Process.Pid || locked.Path != filepath.Join(dir, "lock") || locked.Since.IsZero() {
			t.Errorf("%s: %+v, want the PID %d", what, locked, holder.Process.Pid)
		}
		if want := fmt.Sprintf("in use by process %d", holder.Process.Pid); !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q does not say %q", what, err, want)
		}
	}
	report, err := Inspect(dir, testOptions())
	if err != nil || report.Holder == nil || report.Holder.PID != holder.Process.Pid {
		t.Errorf("Inspect: %+v, %v", report, err)
	}
	holder.kill(t)
	report, err = Inspect(dir, testOptions())
	if err != nil || report.Holder != nil {
		t.Errorf("after the kill: %+v, %v", report, err)
	}
	mustOpen(t, dir, testOptions())
}

// An operator removes what looks like a left-over lock.
func TestRemovedLockStillHolds(t *testing.T) {
	dir, _ := newState(t)
	holder := startChild(t, "hold", dir, nil)
	if line, err := holder.stdout.ReadString('\n'); line != "ready\n" {
		t.Fatalf("the child said %q, %v", line, err)
	}
	if err := os.Remove(filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var locked *LockedError
		if _, err := Open(dir, testOptions()); !errors.As(err, &locked) || locked.PID != 0 || !strings.Contains(err.Error(), "another process") {
			t.Errorf("Open: %v", err)
		}
		if report, err := Inspect(dir, testOptions()); err != nil || report.Holder == nil {
			t.Errorf("Inspect: %+v, %v", report, err)
		}
	}
	holder.kill(t)
	mustOpen(t, dir, testOptions())
}

// The lock also keeps one process from opening a directory twice.
func TestSecondOpenIsRefused(t *testing.T) {
	dir, _ := newState(t)
	s := mustOpen(t, dir, testOptions())
	var locked *LockedError
	if _, err := Open(dir, testOptions()); !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("second Open: %v", err)
	}
	mustClose(t, s)
	mustOpen(t, dir, testOptions())
}

// lastReported is the last whole value that a child reported; 0 if none.
func lastReported(t *testing.T, reported []byte) int64 {
	t.Helper()
	reported = reported[:len(reported)/8*8]
	if len(reported) == 0 {
		return 0
	}
	last := int64(binary.NativeEndian.Uint64(reported[len(reported)-8:]))
	if first := int64(binary.NativeEndian.Uint64(reported)); last-first != int64(len(reported)/8-1) {
		t.Fatalf("the child reported %d to %d in %d values", first, last, len(reported)/8)
	}
	return last
}

// killSometime lets the child work until it has reported a random number of
// values, kills it, and returns all its reports.
func killSometime(t *testing.T, c *child, atMost int) []byte {
	t.Helper()
	reported := make([]byte, 8*(1+rand.IntN(atMost)))
	if n, err := io.ReadFull(c.stdout, reported); err != nil {
		t.Fatalf("the child reported %q, %v", reported[:n], err)
	}
	return append(reported, c.kill(t)...)
}

const kills = 50

func TestMarkSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	previous := int64(0)
	for i := range kills {
		reported := killSometime(t, startChild(t, "raise", dir, nil), 20_000)
		last := lastReported(t, reported)
		if first := int64(binary.NativeEndian.Uint64(reported)); first != previous+1 {
			t.Fatalf("life %d began at %d, and the mark was %d", i, first, previous)
		}
		// Two readings: one from beside, and one that takes the directory.
		report, err := Inspect(dir, testOptions())
		if err != nil || report.Holder != nil {
			t.Fatalf("life %d: %+v, %v", i, report, err)
		}
		s := mustOpen(t, dir, testOptions())
		mark := mustService(t, s, "default").Mark()
		mustClose(t, s)
		if mark != last && mark != last+1 || mark != report.Services[0].Mark {
			t.Fatalf("life %d: the mark is %d (%d from beside), and the last value reported %d", i, mark, report.Services[0].Mark, last)
		}
		previous = mark
	}
	t.Logf("%d kills, mark %d", kills, previous)
}

func TestSaveSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	previous := int64(0)
	for i := range kills {
		last := lastReported(t, killSometime(t, startChild(t, "save", dir, nil), 20))
		s := mustOpen(t, dir, testOptions())
		held := mustService(t, s, "default").Load().Held
		notes := s.Notes()
		mustClose(t, s)
		if len(held) != 1 || len(notes) != 0 {
			t.Fatalf("life %d: held %v, notes %q", i, held, notes)
		}
		if got := held[0].Created; got != last && got != last+1 || got <= previous {
			t.Fatalf("life %d: save %d is there, %d was reported last, %d before", i, got, last, previous)
		}
		previous = held[0].Created
	}
	t.Logf("%d kills, %d saves", kills, previous)
}

// Where a daemon may be killed during its very first start, the next one must
// still start.
func TestFirstStartSurvivesKill(t *testing.T) {
	for i := range kills {
		dir := filepath.Join(t.TempDir(), "state")
		c := startChild(t, "hold", dir, nil)
		stages := []string{"", "lock", "state.db.new", "state.db", "marks.new", "marks", "state.db-wal"}
		stage := stages[i%len(stages)]
		for started := time.Now(); time.Since(started) < 10*time.Second; {
			if _, err := os.Lstat(filepath.Join(dir, stage)); err == nil {
				break
			}
			if _, err := os.Lstat(filepath.Join(dir, stages[len(stages)-1])); err == nil {
				break // the stage was too short to be seen
			}
		}
		c.kill(t)
		s := mustOpen(t, dir, testOptions())
		mustService(t, s, "default")
		if notes := s.Notes(); len(notes) != 0 {
			t.Errorf("life %d: %q", i, notes)
		}
		mustClose(t, s)
		if left, _ := filepath.Glob(filepath.Join(dir, "*"+newSuffix+"*")); len(left) != 0 {
			t.Errorf("left over: %v", left)
		}
	}
}

func TestCrashBetweenStepsOfResetFloor(t *testing.T) {
	dir, saved := newState(t)
	if said := runChild(t, "crash-in-reset", dir, nil); said != "killed" {
		t.Fatalf("the child said %q", said)
	}
	s := mustOpen(t, dir, testOptions())
	sv := mustService(t, s, "default")
	if got := sv.Load(); got.leases() != 0 || got.Timeline != saved.Timeline {
		t.Errorf("saved after the crash: %+v", got)
	}
	if sv.Mark() != 1_800_000_000_000 {
		t.Errorf("the mark is %d", sv.Mark())
	}
}

// nobody is a user without any right, to be tested against even by root.
func nobody(t *testing.T) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil // then we are such a user ourselves
	}
	if _, err := os.Stat("/proc/self/exe"); err != nil {
		t.Skip("root needs /proc to start the test binary as another user")
	}
	return &syscall.Credential{Uid: 65534, Gid: 65534, NoSetGroups: true}
}

func TestWithoutPermission(t *testing.T) {
	user := nobody(t)
	for name, c := range map[string]struct {
		prepare func(dir string) error
		path    string
	}{
		"directory not writable": {func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "lock")), os.Chmod(dir, 0o500))
		}, "lock"},
		"lock not writable":     {func(dir string) error { return os.Chmod(filepath.Join(dir, "lock"), 0o400) }, "lock"},
		"marks not writable":    {func(dir string) error { return os.Chmod(filepath.Join(dir, "marks"), 0o400) }, "marks"},
		"state.db not writable": {func(dir string) error { return os.Chmod(filepath.Join(dir, "state.db"), 0o400) }, "state.db"},
		"state.db not readable": {func(dir string) error { return os.Chmod(filepath.Join(dir, "state.db"), 0) }, "state.db"},
		"no WAL can be made":    {func(dir string) error { return os.Chmod(dir, 0o500) }, "state.db"},
		"parent not writable":   {func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Chmod(filepath.Dir(dir), 0o555)) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root, err := os.MkdirTemp("", "state")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Chmod(root, 0o700); os.RemoveAll(root) })
			dir := filepath.Join(root, "state")
			s := mustOpen(t, dir, testOptions())
			mustService(t, s, "default")
			mustClose(t, s)
			if user != nil {
				for _, path := range append(glob(t, dir, "*"), dir, root) {
					if err := os.Chown(path, int(user.Uid), int(user.Gid)); err != nil {
						t.Fatal(err)
					}
				}
			}
			before := contentsOf(t, dir)
			if err := c.prepare(dir); err != nil {
				t.Fatal(err)
			}
			said := runChild(t, "try", dir, user)
			want := "error: " + filepath.Join(dir, c.path) + ": "
			if !strings.HasPrefix(said, want) || strings.Count(said, "\n") != 1 || !strings.Contains(said, "; ") {
				t.Errorf("it said %q, want one line that begins with %q and has a remedy", said, want)
			}
			after := contentsOf(t, dir)
			for _, file := range []string{"marks", "state.db"} {
				if c.path != "" && after[file] != before[file] {
					t.Errorf("%s was changed", file)
				}
			}
		})
	}
}

// Maintenance is often done with sudo; the daemon must be able to go on.
func TestRootLeavesFilesToTheOwner(t *testing.T) {
	user := nobody(t)
	if user == nil {
		t.Skip("this is about root")
	}
	root, err := os.MkdirTemp("", "state")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	if err := os.Chown(root, int(user.Uid), int(user.Gid)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s := mustOpen(t, root, testOptions())
		mustSave(t, mustService(t, s, "default"), Saved{})
		for _, path := range glob(t, root, "*") {
			if info, _ := os.Stat(path); info.Sys().(*syscall.Stat_t).Uid != user.Uid {
				t.Errorf("%s belongs to root", path)
			}
		}
		mustClose(t, s)
		if said := runChild(t, "try", root, user); said != "" {
			t.Errorf("the owner got: %s", said)
		}
	}
}

func runChild(t *testing.T, mode, dir string, user *syscall.Credential) string {
	t.Helper()
	c := startChild(t, mode, dir, user)
	said, err := io.ReadAll(c.stdout)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); strings.Contains(fmt.Sprint(err), "killed") {
		return string(said) + "killed"
	}
	return string(said)
}

func glob(t *testing.T, dir, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func contentsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	contents := map[string]string{}
	for _, path := range glob(t, dir, "*") {
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		contents[filepath.Base(path)] = string(content)
	}
	return contents
}
