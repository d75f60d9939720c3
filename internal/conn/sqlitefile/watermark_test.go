package sqlitefile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

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
	want := sight{Life: newMark(), Next: newMark(), Commits: 1, LatestEndMS: 2, LongestMS: 3, Main: stamp{4, 5, 6}}
	id := newMark()
	b := encodeWatermark(id, want)
	if gotID, got, err := decodeWatermark(b); err != nil || gotID != id || got != want {
		t.Errorf("%v %+v, %v", gotID, got, err)
	}
	for i := range b {
		b[i] ^= 1
		if _, _, err := decodeWatermark(b); !errors.Is(err, errDamagedWatermark) {
			t.Errorf("byte %d was changed, and the error is %v", i, err)
		}
		b[i] ^= 1
		if _, _, err := decodeWatermark(b[:i]); !errors.Is(err, errDamagedWatermark) {
			t.Errorf("%d bytes: %v", i, err)
		}
	}
}

// A watermark that lost its name is written anew, with what it remembered: a file
// that is put back afterwards is fenced.
func TestLostWatermark(t *testing.T) {
	disk, live := disktest.Ext4(t), disktest.Memory(t)
	path := filepath.Join(disk.Dir(), "db")
	wrote(t, path, inLive(live), "x")
	disktest.Copy(t, path, path+".backup")
	f := openAt(t, path, inLive(live))
	beside := openAt(t, path, inLive(live))
	add(t, f, "y")
	must.Succeed(t, os.RemoveAll(live))
	mustNotBeFenced(t, f)
	add(t, f, "z")
	add(t, beside, "beside")
	theWatermark(t, live)
	mustClose(t, f)
	mustClose(t, beside)
	disktest.Run(t, "cp", path+".backup", path)
	mustBeFenced(t, openAt(t, path, inLive(live)), reasonOlder)
}

// A watermark that was damaged says nothing: the file is fenced, and the watermark is
// written anew.
func TestDamagedWatermark(t *testing.T) {
	harms := map[string]func(string) error{
		"truncated": func(path string) error { return os.Truncate(path, 20) },
		"emptied":   func(path string) error { return os.Truncate(path, 0) },
		"zeroed":    func(path string) error { return os.WriteFile(path, make([]byte, watermarkSize), 0o600) },
	}
	for name, harm := range harms {
		for when, running := range map[string]bool{"running": true, "stopped": false} {
			t.Run(name+", "+when, func(t *testing.T) {
				live, path := disktest.Memory(t), newPath(t)
				f := openAt(t, path, inLive(live))
				add(t, f, "x")
				if !running {
					mustClose(t, f)
				}
				must.Succeed(t, harm(theWatermark(t, live)))
				if !running {
					f = openAt(t, path, inLive(live))
				}
				life := mustBeFenced(t, f, reasonWatermark).Life
				mustClose(t, f)
				if again := fenceOf(t, openAt(t, path, inLive(live))); again.Life != life {
					t.Errorf("fenced again: %+v", again)
				}
			})
		}
	}
}

// Another file in the watermark's place is an error that says so.
func TestReplacedWatermark(t *testing.T) {
	live, path := disktest.Memory(t), newPath(t)
	f := openAt(t, path, inLive(live))
	watermark := theWatermark(t, live)
	must.Succeed(t, errors.Join(os.Remove(watermark), makeWatermark(watermark, newMark(), sight{})))
	if err := write(f, "INSERT INTO a VALUES ('x')"); err == nil || !strings.Contains(err.Error(), watermark) {
		t.Errorf("the error is %v", err)
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

// Several that share a watermark write, and write the log into the main file, and
// none takes what another wrote for an older copy.
func TestWatermarkIsShared(t *testing.T) {
	live, path := disktest.Memory(t), newPath(t)
	const writers, each = 4, 400
	var all sync.WaitGroup
	for n := range writers {
		all.Go(func() {
			f := openAt(t, path, inLive(live))
			for range each {
				if err := write(f, "INSERT INTO a VALUES (hex(randomblob(2000)))"); err != nil {
					t.Error(err)
					return
				}
			}
			mustNotBeFenced(t, f)
			if n%2 == 0 {
				mustClose(t, f)
			}
		})
	}
	all.Wait()
	f := openAt(t, path, inLive(live))
	mustNotBeFenced(t, f)
	counted(t, f)
	if got := readText(t, f, "SELECT count(*) FROM a"); got != "1600" {
		t.Errorf("%s rows", got)
	}
	if info, err := os.Stat(path); err != nil || info.Size() < 1<<20 {
		t.Errorf("the main file: %v, %v; the log was never written into it", info, err)
	}
}

// What makes a file doubtful is not forgotten when the opening that noticed it
// fails, or is killed: the next one fences the file.
func TestDoubtOutlivesAFailedOpening(t *testing.T) {
	for name, doubt := range map[string]func(t *testing.T, live string) (next string){
		"another live directory": func(t *testing.T, _ string) string { return disktest.Memory(t) },
		"a damaged watermark": func(t *testing.T, live string) string {
			must.Succeed(t, os.WriteFile(theWatermark(t, live), []byte("x"), 0o600))
			return live
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, live := filepath.Join(t.TempDir(), "db"), disktest.Memory(t)
			rolledBack(t, path, inLive(live))
			next := doubt(t, live)
			fails := func(*Session) error { return errors.New("the start fails") }
			if _, err := Open(t.Context(), path, &diskKind, Options{LiveDir: next, TermMS: term, Check: fails}); err == nil {
				t.Fatal("the first opening did not fail")
			}
			f := openAt(t, path, Options{LiveDir: next, TermMS: term})
			if fence := fenceOf(t, f); !fence.Forgot || fence.Trusted {
				t.Errorf("the second opening does not fence: %+v", fence)
			}
		})
	}
}
