package sqlitefile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

func tryOpen(t *testing.T, path, live string) (*File, error) {
	t.Helper()
	f, err := Open(t.Context(), path, &diskKind, Options{LiveDir: live, TermMS: term, NowMS: func() int64 { return clockStart }})
	if err == nil {
		t.Cleanup(func() { _ = f.Close() })
	}
	return f, err
}

func mustNotShare(t *testing.T, path, live string) {
	t.Helper()
	_, err := tryOpen(t, path, live)
	var others *NotSharedError
	if !errors.As(err, &others) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "lease server") {
		t.Fatalf("the error is %v, want a NotSharedError", err)
	}
	t.Log(err)
}

// A process without a live directory uses the watermark of those who have the file
// open, and that of those before.
func TestWatermarkOfOthers(t *testing.T) {
	live, path := disktest.Memory(t), newPath(t)
	f := openAt(t, path, Options{LiveDir: live})
	command := openAt(t, path, Options{})
	if command.met.watermark == nil || command.met.watermark.id != f.met.watermark.id || command.met.watermark.made {
		t.Fatalf("its watermark is %+v", command.met.watermark)
	}
	add(t, command, "x")
	add(t, f, "y")
	mustClose(t, f)
	add(t, command, "z")
	mustClose(t, command)
	rolledBack(t, path, Options{TermMS: term})
	mustBeFenced(t, openAt(t, path, Options{TermMS: term}), reasonOlder)
}

// Another live directory that can be reached is shared, too: with those who have
// the file open. Later it is the process's own again, with what the other knew.
func TestAnotherLiveDirectory(t *testing.T) {
	first, second, path := disktest.Memory(t), disktest.Memory(t), newPath(t)
	a := openAt(t, path, Options{LiveDir: first})
	b := openAt(t, path, Options{LiveDir: second})
	if b.met.watermark.id != a.met.watermark.id {
		t.Fatal("they have a watermark each")
	}
	add(t, a, "x")
	mustClose(t, a)
	add(t, b, "y")
	mustClose(t, b)
	rolledBack(t, path, Options{LiveDir: first})
	b = openAt(t, path, Options{LiveDir: second, TermMS: term})
	if filepath.Dir(b.met.watermark.path) != second {
		t.Errorf("its watermark is %s", b.met.watermark.path)
	}
	mustBeFenced(t, b, reasonOlder)
}

// Who cannot reach the watermark of those who have the file open is refused, in
// whatever order they come.
func TestUnreachableWatermark(t *testing.T) {
	ring.All(t)
	live, path := disktest.Memory(t), newPath(t)
	hide := func(t *testing.T) {
		must.Succeed(t, os.Rename(live, live+".elsewhere"))
		t.Cleanup(func() { _ = os.RemoveAll(live + ".elsewhere") })
	}
	f := openAt(t, path, Options{LiveDir: live})
	add(t, f, "x")
	hide(t)
	mustNotShare(t, path, "")
	mustNotShare(t, path, disktest.Memory(t))
	// One of the same name is another one, as in another container.
	other := filepath.Join(live, filepath.Base(f.met.watermark.path))
	must.Succeed(t, errors.Join(os.Mkdir(live, 0o700), makeWatermark(other, newMark(), sight{})))
	mustNotShare(t, path, "")
	mustNotShare(t, path, live)
	mustClose(t, f)
	// Nobody has it open any more.
	f, err := tryOpen(t, path, live)
	must.Succeed(t, err)
	mustNotBeFenced(t, f)
	mustClose(t, f)

	none := openAt(t, path, Options{})
	mustClose(t, none)
	if none.met.watermark == nil {
		t.Error("it does not use the watermark of before")
	}
	must.Succeed(t, os.RemoveAll(live))
	none = openAt(t, path, Options{})
	if none.met.watermark != nil {
		t.Error("it found a watermark")
	}
	mustNotShare(t, path, disktest.Memory(t))
	mustNotBeFenced(t, openAt(t, path, Options{}))
}

// The meeting that was removed under a process would let others meet elsewhere.
func TestMeetingRemoved(t *testing.T) {
	path := newPath(t)
	f := openAt(t, path, Options{})
	must.Succeed(t, os.Remove(path+meetingSuffix))
	if err := write(f, "INSERT INTO a VALUES ('x')"); !errors.Is(err, ErrMoved) || !strings.Contains(err.Error(), meetingSuffix) {
		t.Errorf("a write: %v", err)
	}
	if err := f.Look(t.Context()); !errors.Is(err, ErrMoved) {
		t.Errorf("a read: %v", err)
	}
	mustClose(t, f)
	mustNotBeFenced(t, openAt(t, path, Options{}))
}

// What is beside the database may have been put back with it, or be anything.
func TestMeetingOfAnySort(t *testing.T) {
	live, path := disktest.Memory(t), newPath(t)
	mustClose(t, openAt(t, path, Options{LiveDir: live}))
	for _, text := range []string{"", "{", "no JSON", `{"watermark":"x","path":"relative"}`, `{"path":"/dev/null"}`, `{"path":"` + path + `"}`, strings.Repeat("x", maxRecord+1)} {
		must.Succeed(t, os.WriteFile(path+meetingSuffix, []byte(text), 0o600))
		for _, live := range []string{"", live} {
			f, err := tryOpen(t, path, live)
			if err != nil {
				t.Fatalf("%.30q: %v", text, err)
			}
			mustNotBeFenced(t, f)
			mustClose(t, f)
		}
	}
	must.Succeed(t, errors.Join(os.Remove(path+meetingSuffix), os.Symlink("/etc/passwd", path+meetingSuffix)))
	if _, err := tryOpen(t, path, ""); err == nil {
		t.Error("it followed a symbolic link")
	}
}
