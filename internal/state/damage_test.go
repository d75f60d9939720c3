package state

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

func change(t *testing.T, path string, edit func([]byte) []byte) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, edit(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func execSQL(t *testing.T, path, statements string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.Exec(statements)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

func poke(offset int, value ...byte) func([]byte) []byte {
	return func(b []byte) []byte { copy(b[offset:], value); return b }
}

func cut(size int) func([]byte) []byte { return func(b []byte) []byte { return b[:size] } }

// Each of these stops the start with an error that names the file, and leaves
// every file as it is.
func TestDamagedAndForeignFiles(t *testing.T) {
	slot := func(i int) int { return marksHeader + i*slotSize }
	edit := func(name string, edit func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) { change(t, filepath.Join(dir, name), edit) }
	}
	statement := func(text string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { execSQL(t, filepath.Join(dir, databaseName), text) }
	}
	for name, c := range map[string]struct {
		damage func(t *testing.T, dir string)
		file   string
		text   string
	}{
		"marks empty":           {edit("marks", cut(0)), "marks", "its beginning is empty"},
		"marks cut in magic":    {edit("marks", cut(5)), "marks", "not a marks file"},
		"marks cut in header":   {edit("marks", cut(100)), "marks", "has 100 bytes instead of 69632"},
		"marks cut in slots":    {edit("marks", cut(5000)), "marks", "has 5000 bytes"},
		"marks too long":        {edit("marks", func(b []byte) []byte { return append(b, 0) }), "marks", "has 69633 bytes"},
		"marks zeroed":          {edit("marks", func(b []byte) []byte { return make([]byte, len(b)) }), "marks", "its beginning is empty"},
		"marks foreign":         {edit("marks", poke(0, []byte("something")...)), "marks", "not a marks file"},
		"marks newer":           {edit("marks", poke(8, 2)), "marks", "was written by a newer kazahanad (schema 2, this one knows up to 1); upgrade this one"},
		"marks name changed":    {edit("marks", poke(slot(0)+nameOffset, 'x')), "marks", "does not match its checksum"},
		"marks name too long":   {edit("marks", poke(slot(0)+labelOffset, 255)), "marks", "name of 255 bytes"},
		"marks negative":        {edit("marks", poke(slot(0)+7, 0x80)), "marks", "is negative"},
		"marks without name":    {edit("marks", poke(slot(4), 1)), "marks", "has a mark and no name"},
		"marks double":          {edit("marks", func(b []byte) []byte { copy(b[slot(1):], b[slot(0):slot(1)]); return b }), "marks", "has two entries"},
		"marks generation":      {edit("marks", poke(generationOffset+7, 0x7f)), "marks", "generation is out of range"},
		"marks lacks a service": {edit("marks", poke(slot(0), make([]byte, slotSize)...)), "marks", `no entry for service "default"`},
		"marks missing":         {func(t *testing.T, dir string) { os.Remove(filepath.Join(dir, "marks")) }, "marks", "is missing"},

		"state.db empty":           {edit("state.db", cut(0)), "state.db", "it is empty"},
		"state.db cut in header":   {edit("state.db", cut(50)), "state.db", "is damaged"},
		"state.db cut in page":     {edit("state.db", cut(700)), "state.db", "is damaged"},
		"state.db cut at page":     {edit("state.db", cut(4096)), "state.db", "is damaged"},
		"state.db text":            {edit("state.db", func([]byte) []byte { return []byte(strings.Repeat("hello\n", 1000)) }), "state.db", "is not a state file"},
		"state.db newer":           {statement("PRAGMA user_version = 2"), "state.db", "was written by a newer kazahanad (schema 2, this one knows up to 1); upgrade this one"},
		"state.db foreign":         {statement("PRAGMA application_id = 1"), "state.db", "something else"},
		"state.db without binding": {statement("DELETE FROM binding"), "state.db", "has no binding"},
		"state.db without table":   {statement("DROP TABLE service"), "state.db", "is damaged"},
		"state.db changed":         {statement("UPDATE service SET content = replace(content, '1000', '1001')"), "state.db", "does not match its checksum"},
		"state.db renamed service": {statement("UPDATE service SET name = 'x'"), "state.db", "does not match its checksum"},
		"state.db generation":      {statement("UPDATE binding SET generation = -1"), "state.db", "generation is out of range"},
		"state.db missing, not log": {func(t *testing.T, dir string) {
			os.Rename(filepath.Join(dir, "state.db"), filepath.Join(dir, "state.db-wal"))
		}, "state.db-wal", "that is not there"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _ := newState(t)
			c.damage(t, dir)
			before := contentsOf(t, dir)
			for range 2 { // the second start has no better luck
				_, err := Open(dir, testOptions())
				wantFileError(t, err, filepath.Join(dir, c.file), c.text)
			}
			if c.file != "state.db-wal" {
				_, err := Inspect(dir, testOptions())
				wantFileError(t, err, filepath.Join(dir, c.file), c.text)
			}
			after := contentsOf(t, dir)
			for _, file := range []string{"state.db-wal", "state.db-shm"} { // Inspect leaves empty ones
				if before[file] == "" {
					delete(after, file)
				}
			}
			delete(before, "lock") // names the last holder
			delete(after, "lock")
			if !maps.Equal(after, before) {
				t.Error("a file was changed")
			}
		})
	}
}

// A directory, a link or a device where a file belongs.
func TestWrongKindOfFile(t *testing.T) {
	for _, file := range []string{"lock", "marks", "state.db"} {
		for kind, put := range map[string]func(path string) error{
			"directory": func(path string) error { return os.Mkdir(path, 0o700) },
			"link":      func(path string) error { return os.Symlink("elsewhere", path) },
			"pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		} {
			t.Run(file+" is a "+kind, func(t *testing.T) {
				dir, _ := newState(t)
				path := filepath.Join(dir, file)
				if err := errors.Join(os.Remove(path), put(path)); err != nil {
					t.Fatal(err)
				}
				_, err := Open(dir, testOptions())
				wantFileError(t, err, path, "is not a regular file")
			})
		}
	}
}

func TestUnusableDirectory(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(file, testOptions())
	if err == nil || !strings.Contains(err.Error(), file+": ") || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a file: %v", err)
	}
	if _, err := Open(filepath.Join(file, "below"), testOptions()); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("below a file: %v", err)
	}
	if _, err := Open("", testOptions()); err == nil {
		t.Error("no name was accepted")
	}
	if content, err := os.ReadFile(file); string(content) != "precious" || err != nil {
		t.Errorf("the file now holds %q, %v", content, err)
	}
}

func TestWorldWritableDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "open")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, dir, testOptions())
	if notes := s.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "chmod o-w") {
		t.Errorf("notes: %q", notes)
	}
	mustClose(t, s)
	if os.Geteuid() != 0 {
		t.Skip("only root can give the directory to somebody else")
	}
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir, testOptions())
	wantFileError(t, err, dir, "everybody may write")
}

// Whatever byte changes, and wherever the file ends, a start either fails or
// finds what was saved; it never finds something else. A lease that is not
// adopted is the safe exception.
func TestRandomDamage(t *testing.T) {
	dir, want := newState(t)
	const mark = 1_800_000_000_000
	whole := contentsOf(t, dir)
	outcomes := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{marksName, databaseName}).Draw(t, "file")
		content := []byte(whole[name])
		if rapid.Bool().Draw(t, "cut?") {
			content = content[:rapid.IntRange(0, len(content)-1).Draw(t, "size")]
		} else {
			// Half of the time where there is something.
			at := rapid.IntRange(0, len(content)-1).Draw(t, "offset")
			if rapid.Bool().Draw(t, "text?") {
				at = strings.IndexFunc(whole[name][at:], func(r rune) bool { return r != 0 }) + at
			}
			content[max(at, 0)] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		}
		for file, text := range whole {
			if file == name {
				text = string(content)
			}
			// In place: the binding shall hold.
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		defer func() {
			os.Remove(filepath.Join(dir, "state.db-wal"))
			os.Remove(filepath.Join(dir, "state.db-shm"))
		}()
		s, err := Open(dir, testOptions())
		if err != nil {
			var e *FileError
			if !errors.As(err, &e) || e.Path != filepath.Join(dir, name) || e.Remedy == "" {
				t.Fatalf("error is %v, want a FileError about %s", err, name)
			}
			outcomes[name+": refused"]++
			return
		}
		defer s.Close()
		sv, err := s.Service("default")
		if err != nil {
			t.Fatal(err)
		}
		got := sv.Load()
		switch {
		case reflect.DeepEqual(got, want):
			outcomes[name+": unharmed"]++
		case reflect.DeepEqual(got, want.withoutLeases()) && len(s.Notes()) == 1:
			outcomes[name+": not adopted"]++
		default:
			t.Fatalf("Load gives %+v, notes %q", got, s.Notes())
		}
		// The eight bytes of a mark carry no check: it is one plain store.
		if got := sv.Mark(); got != mark && name != marksName {
			t.Fatalf("Mark is %d", got)
		}
	})
	t.Log(outcomes)
}

func TestMissingDatabaseKeepsMarks(t *testing.T) {
	dir, _ := newState(t)
	if err := os.Remove(filepath.Join(dir, databaseName)); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, dir, testOptions())
	if notes := s.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "state.db is missing") {
		t.Errorf("notes: %q", notes)
	}
	sv := mustService(t, s, "default")
	if got := sv.Load(); !reflect.DeepEqual(got, Saved{}) || sv.Mark() != 1_800_000_000_000 {
		t.Errorf("Load gives %+v, Mark %d", got, sv.Mark())
	}
	want := savedWith(testLease(1, 1))
	mustSave(t, sv, want)
	mustClose(t, s)
	s = mustOpen(t, dir, testOptions())
	if got := mustService(t, s, "default").Load(); !reflect.DeepEqual(got, want) || len(s.Notes()) != 0 {
		t.Errorf("Load gives %+v, notes %q", got, s.Notes())
	}
}

func TestRemovedWhileRunning(t *testing.T) {
	dir, want := newState(t)
	s := mustOpen(t, dir, testOptions())
	sv := mustService(t, s, "default")
	path := filepath.Join(dir, databaseName)
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	wantFileError(t, sv.Save(Saved{}), path, "was removed or replaced")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantFileError(t, sv.Save(Saved{}), path, "was removed or replaced")
	if got := sv.Load(); !reflect.DeepEqual(got, want) {
		t.Errorf("Load gives %+v", got)
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	mustSave(t, sv, Saved{})
}

// A marks file that was restored with holes gets its blocks before it is
// mapped.
func TestSparseMarksAreFilled(t *testing.T) {
	dir, _ := newState(t)
	path := filepath.Join(dir, marksName)
	if out, err := exec.Command("cp", "--sparse=always", path, path+".sparse").CombinedOutput(); err != nil {
		t.Skipf("cp cannot make a sparse file: %v: %s", err, out)
	}
	if err := os.Rename(path+".sparse", path); err != nil {
		t.Fatal(err)
	}
	usage := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return diskUsage(info)
	}
	if usage() >= marksSize {
		t.Skip("the file system does not keep holes")
	}
	s := mustOpen(t, dir, testOptions())
	if usage() < marksSize {
		t.Errorf("the file has %d bytes of disk for its %d", usage(), marksSize)
	}
	if mark := mustService(t, s, "default").Mark(); mark != 1_800_000_000_000 {
		t.Errorf("the mark is %d", mark)
	}
}

func TestFullDiskAtFirstStart(t *testing.T) {
	for _, size := range []string{"4k", "16k", "64k", "80k"} {
		t.Run(size, func(t *testing.T) {
			root := tmpfs(t, size)
			dir := filepath.Join(root, "state")
			_, err := Open(dir, testOptions())
			var e *FileError
			if !errors.As(err, &e) || !strings.HasPrefix(e.Path, dir) || !strings.Contains(e.Remedy, "space") {
				t.Fatalf("error is %v, want a FileError about a full disk", err)
			}
			t.Log(err)
			if left := glob(t, dir, "*"+newSuffix+"*"); len(left) != 0 {
				t.Errorf("left over: %v", left)
			}
			if out, err := exec.Command("mount", "-o", "remount,size=4m", root).CombinedOutput(); err != nil {
				t.Fatalf("remount: %v: %s", err, out)
			}
			s := mustOpen(t, dir, testOptions())
			mustService(t, s, "default")
			mustClose(t, s)
		})
	}
}

func fillDisk(t *testing.T, root string) (path string) {
	t.Helper()
	path = filepath.Join(root, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 512))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return path
}

func TestFullDiskWhileRunning(t *testing.T) {
	root := tmpfs(t, "1m")
	dir := filepath.Join(root, "state")
	s := mustOpen(t, dir, testOptions())
	sv := mustService(t, s, "default")
	want := savedWith(testLease(1, 1))
	mustSave(t, sv, want)
	filler := fillDisk(t, root)

	var err error
	created := int64(1)
	for err == nil && created < 100 { // SQLite may have some pages left
		created++
		next := savedWith(testLease(1, created))
		if err = sv.Save(next); err == nil {
			want = next
		}
	}
	wantFileError(t, err, filepath.Join(dir, databaseName), "full")
	if got := sv.Load(); !reflect.DeepEqual(got, want) {
		t.Errorf("Load gives %+v, want %+v", got, want)
	}
	for v := range int64(100_000) { // marks have their space
		sv.RaiseMark(v)
	}
	if err := s.marks.sync(); err != nil {
		t.Error(err)
	}
	// A crash now: the files as they are, without Close.
	crashed := contentsOf(t, dir)
	mustClose(t, s)
	for name, content := range crashed {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Log("cannot play the crash: ", err)
		}
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, dir, testOptions())
	if notes := s.Notes(); len(notes) != 0 {
		t.Errorf("notes: %q", notes)
	}
	sv = mustService(t, s, "default")
	if got := sv.Load(); !reflect.DeepEqual(got, want) || sv.Mark() != 99_999 {
		t.Errorf("after the crash Load gives %+v, Mark %d; want %+v", got, sv.Mark(), want)
	}
	mustSave(t, sv, savedWith(testLease(2, 2)))
}

// A daemon that was killed starts again on a disk that has filled up since.
func TestRestartOnFullDisk(t *testing.T) {
	root := tmpfs(t, "1m")
	dir := filepath.Join(root, "state")
	c := startChild(t, "save", dir, nil)
	last := lastReported(t, killSometime(t, c, 5))
	fillDisk(t, root)
	s := mustOpen(t, dir, testOptions())
	held := mustService(t, s, "default").Load().Held
	if len(held) != 1 || held[0].Created < last {
		t.Errorf("held %v, want one made at %d or after", held, last)
	}
}

func TestReadOnlyFileSystem(t *testing.T) {
	root := tmpfs(t, "1m")
	dir := filepath.Join(root, "state")
	s := mustOpen(t, dir, testOptions())
	mustSave(t, mustService(t, s, "default"), savedWith(testLease(1, 1)))
	mustClose(t, s)
	if out, err := exec.Command("mount", "-o", "remount,ro", root).CombinedOutput(); err != nil {
		t.Fatalf("remount: %v: %s", err, out)
	}
	_, err := Open(dir, testOptions())
	wantFileError(t, err, filepath.Join(dir, lockName), "read-only file system")
	_, err = Open(filepath.Join(root, "new"), testOptions())
	wantFileError(t, err, filepath.Join(root, "new"), "read-only file system")
}

// A file that is read-only by itself, with everything else in order.
func TestImmutableFiles(t *testing.T) {
	for _, name := range []string{marksName, databaseName} {
		t.Run(name, func(t *testing.T) {
			dir, _ := newState(t)
			path := filepath.Join(dir, name)
			if out, err := exec.Command("chattr", "+i", path).CombinedOutput(); err != nil {
				t.Skipf("cannot make a file immutable: %v: %s", err, out)
			}
			t.Cleanup(func() { exec.Command("chattr", "-i", path).Run() })
			_, err := Open(dir, testOptions())
			wantFileError(t, err, path, "cannot")
			if err != nil {
				t.Log(fmt.Sprint(err))
			}
		})
	}
}
