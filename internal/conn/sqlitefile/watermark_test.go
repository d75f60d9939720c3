package sqlitefile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
)

func theWatermark(t *testing.T, live string) string {
	t.Helper()
	entries, err := os.ReadDir(live)
	if err != nil || len(entries) != 1 {
		t.Fatalf("in the live directory there is %v (%v), want one watermark", entries, err)
	}
	return filepath.Join(live, entries[0].Name())
}

func TestWatermarkFile(t *testing.T) {
	want := sight{Done: point{uuid.New(), 1}, Next: point{uuid.New(), 2}, Main: stamp{3, 4, 5}, LatestEndMS: 6, LongestMS: 7}
	w := &watermark{id: uuid.New(), device: 8}
	b := w.encode(want)
	var read watermark
	if got, err := read.decode(b); err != nil || read.id != w.id || read.device != w.device || got != want {
		t.Errorf("%+v %+v, %v", read, got, err)
	}
	for i := range b {
		b[i] ^= 1
		if _, err := read.decode(b); !errors.Is(err, errDamagedWatermark) {
			t.Errorf("byte %d was changed, and the error is %v", i, err)
		}
		b[i] ^= 1
		if _, err := read.decode(b[:i]); !errors.Is(err, errDamagedWatermark) {
			t.Errorf("%d bytes: %v", i, err)
		}
	}
}

// A watermark that another process is writing is not taken for a damaged one: it is read when
// that process has finished.
func TestWatermarkBeingWritten(t *testing.T) {
	path := filepath.Join(disktest.Memory(t), "watermark")
	must.Succeed(t, makeWatermark(&watermark{path: path, id: uuid.New()}))
	w, err := openWatermark(path)
	must.Succeed(t, err)
	defer w.close()
	other, err := openWatermark(path)
	must.Succeed(t, err)
	defer other.close()
	whole := other.encode(sight{Done: point{uuid.New(), 7}})
	must.Succeed(t, flock(other.file, unix.LOCK_EX))
	_, err = other.file.WriteAt(whole[:watermarkSize/2], 0)
	must.Succeed(t, err)
	closing := make(chan struct{})
	close(closing)
	if _, err := w.read(closing); !errors.Is(err, ErrClosed) {
		t.Errorf("it did not wait: %v", err)
	}
	_, err = other.file.WriteAt(whole, 0)
	must.Succeed(t, errors.Join(err, flock(other.file, unix.LOCK_UN)))
	if s, err := w.read(nil); err != nil || s.Done.Commits != 7 {
		t.Errorf("it reads %+v, %v", s, err)
	}
}

// The numbers of a watermark never go down, in any order of processes that raise it.
func TestWatermarkRises(t *testing.T) {
	first, second := uuid.New(), uuid.New()
	seen := sight{}.done(life{ID: first, Commits: 5, LatestEndMS: 70, LongestMS: 3}, stamp{Size: 1})
	for name, c := range map[string]struct {
		row  life
		want sight
	}{
		"a late one": {life{ID: first, Commits: 4, LatestEndMS: 80, LongestMS: 2}, sight{Done: point{first, 5}, Main: stamp{Size: 1}, LatestEndMS: 80, LongestMS: 3}},
		"the same":   {life{ID: first, Commits: 5}, sight{Done: point{first, 5}, Main: stamp{Size: 2}, LatestEndMS: 70, LongestMS: 3}},
		"a new life": {life{ID: second, Commits: 6}, sight{Done: point{second, 6}, Main: stamp{Size: 2}, LatestEndMS: 70, LongestMS: 3}},
	} {
		if got := seen.done(c.row, stamp{Size: 2}); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// A watermark that was removed under processes is still theirs: they notice an older file in its
// place. A process that comes later cannot reach it.
func TestLostWatermark(t *testing.T) {
	live, path := disktest.Memory(t), newPath(t)
	wrote(t, path, inLive(live), "x")
	disktest.Run(t, "cp", path, path+".backup")
	f := openAt(t, path, inLive(live))
	beside := openAt(t, path, inLive(live))
	add(t, f, "y")
	must.Succeed(t, os.RemoveAll(live))
	add(t, beside, "z")
	mustNotBeFenced(t, f)
	mustNotShare(t, path, live)
	disktest.Run(t, "cp", path+".backup", path)
	mustBeFenced(t, f, reasonOlder)
	mustClose(t, f)
	mustClose(t, beside)
	mustClose(t, openAt(t, path, inLive(live)))
}

// A watermark that was damaged is an error, until all processes have ended.
func TestDamagedWatermark(t *testing.T) {
	for name, harm := range map[string]func(string) error{
		"truncated": func(path string) error { return os.Truncate(path, 20) },
		"emptied":   func(path string) error { return os.Truncate(path, 0) },
		"zeroed":    func(path string) error { return os.WriteFile(path, make([]byte, watermarkSize), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			live, path := disktest.Memory(t), newPath(t)
			f := openAt(t, path, inLive(live))
			add(t, f, "x")
			at := theWatermark(t, live)
			must.Succeed(t, harm(at))
			for what, err := range map[string]error{"a write": write(f, "INSERT INTO a VALUES ('y')"), "a read": look(t.Context(), f)} {
				if err == nil || !strings.Contains(err.Error(), at) || !strings.Contains(err.Error(), "damaged") {
					t.Errorf("%s: %v", what, err)
				}
			}
			mustNotShare(t, path, live)
			mustClose(t, f)
			f = openAt(t, path, inLive(live))
			mustNotBeFenced(t, f)
			add(t, f, "z")
		})
	}
}

func TestLiveDirectoryThatCannotBeUsed(t *testing.T) {
	disk := disktest.Ext4(t)
	for live, want := range map[string]string{
		disk.Dir():                    "not on a file system in memory",
		"run":                         "must be absolute",
		"/dev/null/x":                 "not a directory",
		filepath.Join("/proc", "xyz"): "the live directory",
	} {
		f, err := Open(t.Context(), newPath(t), &noteKind, Options{LiveDir: live})
		if err == nil {
			f.Close()
			t.Errorf("%s was used", live)
			continue
		}
		if t.Log(err); !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %q", live, err, want)
		}
	}
}
