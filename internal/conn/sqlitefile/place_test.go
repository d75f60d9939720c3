package sqlitefile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

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
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "lease server") {
		t.Fatalf("the error is %v, want one that says who can share the file", err)
	}
	t.Log(err)
}

// A process without a live directory uses the watermark of the processes that have the file open,
// and of earlier ones.
func TestWatermarkOfOthers(t *testing.T) {
	live, path := disktest.Memory(t), newPath(t)
	f := openAt(t, path, Options{LiveDir: live})
	command := openAt(t, path, Options{})
	if command.watermark == nil || command.watermark.id != f.watermark.id {
		t.Fatalf("its watermark is %+v", command.watermark)
	}
	add(t, command, "x")
	add(t, f, "y")
	mustClose(t, f)
	add(t, command, "z")
	mustClose(t, command)
	rolledBack(t, path, Options{TermMS: term})
	mustBeFenced(t, openAt(t, path, Options{TermMS: term}), reasonOlder)
}

// Another live directory that can be reached is shared: by the processes that have the file open,
// and by later ones.
func TestAnotherLiveDirectory(t *testing.T) {
	first, second, path := disktest.Memory(t), disktest.Memory(t), newPath(t)
	a := openAt(t, path, Options{LiveDir: first})
	b := openAt(t, path, Options{LiveDir: second})
	if b.watermark.id != a.watermark.id {
		t.Fatal("they have a watermark each")
	}
	add(t, a, "x")
	mustClose(t, a)
	add(t, b, "y")
	mustClose(t, b)
	rolledBack(t, path, Options{LiveDir: second})
	b = openAt(t, path, Options{LiveDir: second, TermMS: term})
	if filepath.Dir(b.watermark.path) != first {
		t.Errorf("its watermark is %s", b.watermark.path)
	}
	mustBeFenced(t, b, reasonOlder)
}

// A process that cannot reach the watermark of the others that have the file open is refused, in
// any order.
func TestUnreachableWatermark(t *testing.T) {
	ring.All(t)
	live, path := disktest.Memory(t), newPath(t)
	f := openAt(t, path, Options{LiveDir: live})
	add(t, f, "x")
	must.Succeed(t, os.Rename(live, live+".elsewhere"))
	t.Cleanup(func() { _ = os.RemoveAll(live + ".elsewhere") })
	mustNotShare(t, path, "")
	mustNotShare(t, path, disktest.Memory(t))
	// One of the same name is another one, as in another container.
	other := &watermark{path: f.watermark.path, id: uuid.New(), device: f.id.device}
	must.Succeed(t, errors.Join(os.Mkdir(live, 0o700), makeWatermark(other)))
	mustNotShare(t, path, "")
	mustNotShare(t, path, live)
	mustClose(t, f)
	// All processes have closed it.
	f, err := tryOpen(t, path, live)
	must.Succeed(t, err)
	mustNotBeFenced(t, f)
	mustClose(t, f)

	none := openAt(t, path, Options{})
	mustClose(t, none)
	if none.watermark == nil {
		t.Error("it does not use the watermark of before")
	}
	must.Succeed(t, os.RemoveAll(live))
	none = openAt(t, path, Options{})
	if none.watermark != nil {
		t.Error("it found a watermark")
	}
	mustNotShare(t, path, disktest.Memory(t))
	mustNotBeFenced(t, openAt(t, path, Options{}))
}

// A recorded watermark counts for a file of its own device only.
func TestWatermarkOfAnotherDevice(t *testing.T) {
	w := &watermark{path: filepath.Join(disktest.Memory(t), "watermark"), id: uuid.New(), device: 7}
	must.Succeed(t, makeWatermark(w))
	for device, reached := range map[uint64]bool{7: true, 8: false} {
		got := recordOf(w).reach(identity{device: device})
		if (got != nil) != reached {
			t.Errorf("a file of device %d: %+v", device, got)
		}
		must.Succeed(t, got.close())
	}
}

// A folder that was removed gives its inode to a new one, with a database that has seen nothing.
func TestWatermarkOfAnotherFolder(t *testing.T) {
	live, folder := disktest.Memory(t), filepath.Join(disktest.Ext4(t).Dir(), "state")
	var before identity
	for range 2 {
		must.Succeed(t, os.Mkdir(folder, 0o700))
		id, err := identityOf(folder)
		must.Succeed(t, err)
		if before.device != 0 && id.Inode != before.Inode {
			t.Skip("the file system gave another inode")
		}
		before = id
		f := openAt(t, filepath.Join(folder, "db"), inLive(live))
		mustNotBeFenced(t, f)
		add(t, f, "x")
		mustClose(t, f)
		must.Succeed(t, os.RemoveAll(folder))
	}
}

// A place that was removed under a process would let others meet elsewhere.
func TestPlaceRemoved(t *testing.T) {
	path := newPath(t)
	f := openAt(t, path, Options{})
	must.Succeed(t, os.Remove(path+placeSuffix))
	if err := write(f, "INSERT INTO a VALUES ('x')"); !errors.Is(err, ErrMoved) || !strings.Contains(err.Error(), placeSuffix) {
		t.Errorf("a write: %v", err)
	}
	if err := look(t.Context(), f); !errors.Is(err, ErrMoved) {
		t.Errorf("a read: %v", err)
	}
	mustClose(t, f)
	mustNotBeFenced(t, openAt(t, path, Options{}))
}

// The file beside the database may have been put back with it, or hold anything.
func TestPlaceOfAnySort(t *testing.T) {
	live, path := disktest.Memory(t), newPath(t)
	mustClose(t, openAt(t, path, Options{LiveDir: live}))
	for _, text := range []string{"", "{", "no JSON", `{"watermark":"x","path":"relative"}`, `{"path":"/dev/null"}`, `{"path":"` + path + `"}`, strings.Repeat("x", maxRecord+1)} {
		must.Succeed(t, os.WriteFile(path+placeSuffix, []byte(text), 0o600))
		for _, live := range []string{"", live} {
			f, err := tryOpen(t, path, live)
			if err != nil {
				t.Fatalf("%.30q: %v", text, err)
			}
			mustNotBeFenced(t, f)
			mustClose(t, f)
		}
	}
	must.Succeed(t, errors.Join(os.Remove(path+placeSuffix), os.Symlink("/etc/passwd", path+placeSuffix)))
	if _, err := tryOpen(t, path, ""); err == nil {
		t.Error("it followed a symbolic link")
	}
}

// A place is written over, for which a full disk has room. What a process that was killed
// meanwhile left behind the new record does not count.
func TestPlaceIsWrittenOver(t *testing.T) {
	path := newPath(t)
	must.Succeed(t, errors.Join(os.WriteFile(path, nil, 0o600), os.WriteFile(path+placeSuffix, []byte(`{"pid":7}`+"\n"+`rk":"x","pid":12345}`), 0o600)))
	p, err := newPlace(path)
	must.Succeed(t, err)
	defer p.close()
	if r := p.read(); r != (record{PID: 7}) {
		t.Errorf("it reads %+v", r)
	}
	must.Succeed(t, p.write(record{PID: 8}))
	if text, err := os.ReadFile(path + placeSuffix); err != nil || string(text) != `{"pid":8}`+"\n" {
		t.Errorf("it wrote %q (%v)", text, err)
	}
}

// One process owns a store. The error of another names it, and is over when it has closed.
func TestOneOwner(t *testing.T) {
	live, path := disktest.Memory(t), newPath(t)
	f := openOf(t, &ownedKind, path, inLive(live))
	add(t, f, "x")
	for _, opts := range []Options{{}, inLive(live), inLive(disktest.Memory(t))} {
		_, err := Open(t.Context(), path, &ownedKind, opts)
		var owned *OwnedError
		if !errors.As(err, &owned) || owned.PID != os.Getpid() || owned.Socket != f.Socket() || owned.Socket == "" ||
			!strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "lease server") {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	noIndex := func() {
		t.Helper()
		if _, err := os.Stat(path + "-shm"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the log has an index in a file, which SQLite maps: %v", err)
		}
	}
	noIndex()
	mustClose(t, f)
	f = openOf(t, &ownedKind, path, inLive(live))
	mustNotBeFenced(t, f)
	noIndex()
	if got := readText(t, f, "SELECT text FROM a"); got != "x" {
		t.Errorf("it has %q", got)
	}
}
