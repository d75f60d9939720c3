package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func TestSecondProcessIsRefused(t *testing.T) {
	ring.All(t)
	p, _ := usedPlace(t)
	holder := startChild(t, "hold", p, nil)
	holder.ready(t)
	decide := func(ServiceReport) (tl snowflake.Timeline, err error) { return tl, errors.New("asked") }
	for what, try := range map[string]func() error{
		"Open":           func() error { _, err := p.open(); return err },
		"ResetFloor":     func() error { _, err := ResetFloor(p.dir, "", resetTo, p.options()); return err },
		"AcceptTimeline": func() error { return AcceptTimeline(p.dir, "default", p.options(), decide) },
	} {
		err := try()
		var locked *LockedError
		if !errors.As(err, &locked) {
			t.Errorf("%s: %v, want a LockedError", what, err)
			continue
		}
		if locked.PID != holder.Process.Pid || locked.Path != p.disk(lockName) {
			t.Errorf("%s: %+v, want the PID %d", what, locked, holder.Process.Pid)
		}
		if want := fmt.Sprintf("in use by process %d (", holder.Process.Pid); !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q does not say %q", what, err, want)
		}
	}
	if report := p.inspect(t); report.Holder == nil || report.Holder.PID != holder.Process.Pid || report.Refusal != "" {
		t.Errorf("Inspect: %+v", report)
	}
	holder.kill(t)
	if report := p.inspect(t); report.Holder != nil {
		t.Errorf("after the kill: %+v", report)
	}
	mustOpen(t, p)
}

// An operator removes what looks like a left-over lock.
func TestRemovedLockStillHolds(t *testing.T) {
	ring.All(t)
	p, _ := usedPlace(t)
	holder := startChild(t, "hold", p, nil)
	holder.ready(t)
	must.Succeed(t, os.Remove(p.disk(lockName)))
	for range 2 {
		var locked *LockedError
		if _, err := p.open(); !errors.As(err, &locked) || locked.PID != 0 || !strings.Contains(err.Error(), "another process") {
			t.Errorf("Open: %v", err)
		}
		if report := p.inspect(t); report.Holder == nil {
			t.Errorf("Inspect: %+v", report)
		}
	}
	holder.kill(t)
	mustOpen(t, p)
}

// What holds a lock for an instant is waited for.
func TestLockThatIsTakenForAnInstant(t *testing.T) {
	p, saved := usedPlace(t)
	for _, path := range []string{p.dir, p.folder(t)} {
		f, err := os.Open(path)
		must.Succeed(t, err)
		must.Succeed(t, flock(f, syscall.LOCK_SH|syscall.LOCK_NB))
		time.AfterFunc(3*lockInterval, func() { f.Close() })
		wantAdopted(t, p, saved)
	}
}

// A record that is cut, or of another program, names no process.
func TestRecordOfTheHolder(t *testing.T) {
	dir := t.TempDir()
	d, err := openDir(dir, false, "")
	must.Succeed(t, err)
	defer d.Close()
	for record, want := range map[string]Holder{"17  \n": {PID: 17}, "17": {PID: 17}, "17 x": {}, "-1\n": {}, "": {}} {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, lockName), []byte(record), 0o600))
		if got := d.readRecord(lockName); got != want {
			t.Errorf("%q: %+v, want %+v", record, got, want)
		}
	}
}

// A predecessor that holds the folder alone is dying: it is waited for, and nothing is lost.
// A holder file that another daemon writes meanwhile ends the wait.
func TestFolderOfADyingPredecessor(t *testing.T) {
	for _, taken := range []bool{false, true} {
		p, saved := usedPlace(t)
		folder := p.folder(t)
		f, err := os.Open(folder)
		must.Succeed(t, err)
		must.Succeed(t, flock(f, syscall.LOCK_EX|syscall.LOCK_NB))
		s, opened := openWaiting(t, p)
		if taken {
			content, err := seal(holderKind, holderFile{Path: "/elsewhere"})
			must.Succeed(t, err)
			must.Succeed(t, os.WriteFile(filepath.Join(folder, holderName), content, 0o600))
			saved = saved.withoutLeases()
		} else {
			must.Succeed(t, f.Close())
		}
		must.Succeed(t, <-opened)
		wantLoads(t, s.service("default"), saved)
		if (s.folder != filepath.Base(folder)) != taken {
			t.Errorf("taken by another: %v, and the folder is %s", taken, s.folder)
		}
		mustClose(t, s)
		f.Close()
	}
}

// A folder without a holder file, or with a damaged one, is another daemon's while it is locked:
// no daemon waits for a process that may live for ever.
func TestLockedFolderOfNobody(t *testing.T) {
	for _, damage := range []func(string) error{os.Remove, func(path string) error { return os.WriteFile(path, []byte("?"), 0o600) }} {
		p, saved := usedPlace(t)
		folder := p.folder(t)
		f, err := os.Open(folder)
		must.Succeed(t, err)
		must.Succeed(t, errors.Join(flock(f, syscall.LOCK_EX|syscall.LOCK_NB), damage(filepath.Join(folder, holderName))))
		s := mustOpen(t, p)
		wantLoads(t, s.service("default"), saved.withoutLeases())
		must.Succeed(t, f.Close())
	}
}
