package state

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"modernc.org/sqlite"
)

func optionsOf(machine, boot string) Options {
	return Options{Identity: func() Identity { return Identity{MachineID: machine, BootID: boot} }}
}

// wantDropped opens the directory and checks that leases are gone, timeline,
// offer and mark are not, and the reason is told; and that they stay gone even
// where the next start has no objection.
func wantDropped(t *testing.T, dir string, opts Options, was Saved, reason string) {
	t.Helper()
	for i, opts := range []Options{opts, opts, testOptions()} {
		s := mustOpen(t, dir, opts)
		notes := s.Notes()
		if i == 0 && (len(notes) != 1 || !strings.Contains(notes[0], "the leases of default are not adopted: "+reason)) {
			t.Errorf("notes are %q, want %q", notes, reason)
		}
		if i > 0 && len(notes) != 0 {
			t.Errorf("start %d: notes %q", i, notes)
		}
		sv := mustService(t, s, "default")
		if got := sv.Load(); !reflect.DeepEqual(got, was.withoutLeases()) {
			t.Errorf("start %d: Load gives %+v", i, got)
		}
		if sv.Mark() != 1_800_000_000_000 {
			t.Errorf("start %d: Mark is %d", i, sv.Mark())
		}
		mustClose(t, s)
	}
}

func wantAdopted(t *testing.T, dir string, opts Options, want Saved) {
	t.Helper()
	s := mustOpen(t, dir, opts)
	if got := mustService(t, s, "default").Load(); !reflect.DeepEqual(got, want) || len(s.Notes()) != 0 {
		t.Errorf("Load gives %+v, notes %q", got, s.Notes())
	}
	mustClose(t, s)
}

func TestForeignLeasesAreNotAdopted(t *testing.T) {
	for name, c := range map[string]struct {
		opts   Options
		reason string
	}{
		"other machine":           {optionsOf("machine b", "boot a"), "they were saved on another machine"},
		"other boot":              {optionsOf("machine a", "boot b"), "they were saved before the last boot"},
		"machine ID unreadable":   {optionsOf("", "boot a"), "they were saved on another machine"},
		"boot ID unreadable":      {optionsOf("machine a", ""), "this host's boot ID cannot be read"},
		"neither can be read now": {optionsOf("", ""), "this host's boot ID cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, saved := newState(t)
			wantAdopted(t, dir, testOptions(), saved)
			report, err := Inspect(dir, c.opts)
			if err != nil || report.Refusal != c.reason {
				t.Errorf("Inspect: %q, %v", report.Refusal, err)
			}
			wantDropped(t, dir, c.opts, saved, c.reason)
		})
	}
}

// Without a boot ID nothing tells a cloned disk from the original, so nothing
// is adopted even where all that is known agrees.
func TestNothingReadableNothingAdopted(t *testing.T) {
	dir := t.TempDir()
	opts := optionsOf("", "")
	s := mustOpen(t, dir, opts)
	sv := mustService(t, s, "default")
	mustSave(t, sv, savedWith(testLease(1, 1)))
	sv.RaiseMark(1_800_000_000_000)
	mustClose(t, s)
	wantDropped(t, dir, opts, savedWith(), "this host's boot ID cannot be read")
}

// Containers often have no machine ID; the boot ID says enough.
func TestBootIDSuffices(t *testing.T) {
	dir := t.TempDir()
	opts := optionsOf("", "boot a")
	s := mustOpen(t, dir, opts)
	want := savedWith(testLease(1, 1))
	mustSave(t, mustService(t, s, "default"), want)
	mustClose(t, s)
	wantAdopted(t, dir, opts, want)
}

func TestCopyIsNotAdopted(t *testing.T) {
	dir, saved := newState(t)
	copied := copyDir(t, dir)
	wantDropped(t, copied, testOptions(), saved, "state.db is a copy")
	wantAdopted(t, dir, testOptions(), saved)

	// Also while the original is in use.
	s := mustOpen(t, dir, testOptions())
	mustSave(t, mustService(t, s, "default"), saved)
	wantDropped(t, copyDir(t, dir), testOptions(), saved, "state.db is a copy")
	mustClose(t, s)

	// Moving is not copying.
	moved := dir + "-moved"
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	wantAdopted(t, moved, testOptions(), saved)
}

// The same file, boot and machine, but an old content: the leases in it may
// have been released and granted to others since.
func TestOldDatabaseInPlaceIsNotAdopted(t *testing.T) {
	dir, saved := newState(t)
	path := filepath.Join(dir, databaseName)
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, dir, testOptions())
	mustSave(t, mustService(t, s, "default"), saved.withoutLeases())
	mustClose(t, s)
	change(t, path, func([]byte) []byte { return old })
	wantDropped(t, dir, testOptions(), saved, "state.db is older than the marks")
}

func TestOldMarksInPlaceMeanNoAdoption(t *testing.T) {
	dir, saved := newState(t)
	path := filepath.Join(dir, marksName)
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, dir, testOptions())
	sv := mustService(t, s, "default")
	sv.RaiseMark(1_900_000_000_000)
	mustSave(t, sv, saved)
	mustSave(t, sv, saved)
	mustClose(t, s)
	change(t, path, func([]byte) []byte { return old })
	wantDropped(t, dir, testOptions(), saved, "the marks are older than state.db")
}

// Removing the write-ahead log after a crash takes the last writes with it.
func TestLostLogMeansNoAdoption(t *testing.T) {
	dir, saved := newState(t)
	wantAdopted(t, dir, testOptions(), saved)
	c := startChild(t, "save", dir, nil)
	killSometime(t, c, 3)
	if err := os.Remove(filepath.Join(dir, "state.db-wal")); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, dir, testOptions())
	notes := s.Notes()
	if held := mustService(t, s, "default").Load().Held; len(held) != 0 || len(notes) != 1 || !strings.Contains(notes[0], "without its -wal file") {
		t.Errorf("held %v, notes %q", held, notes)
	}
}

// A write whose bytes reached the file although it reported a failure must not
// bring back, after a crash, a lease that the daemon gave away in the meantime.
func TestFailedWriteDoesNotResurrect(t *testing.T) {
	dir, _ := newState(t)
	s := mustOpen(t, dir, testOptions())
	sv := mustService(t, s, "default")
	want := savedWith(testLease(1, 1))
	mustSave(t, sv, want)
	s.db.afterCommit = func() error { return errors.New("injected: sync failed") }
	err := sv.Save(savedWith(testLease(2, 2)))
	if !errors.Is(err, errDoubtful) {
		t.Fatalf("Save: %v", err)
	}
	if got := sv.Load(); !reflect.DeepEqual(got, want) {
		t.Errorf("Load gives %+v", got)
	}
	mustClose(t, s) // the files are as a crash leaves them: Close writes no content
	s = mustOpen(t, dir, testOptions())
	sv = mustService(t, s, "default")
	if got := sv.Load(); got.leases() != 0 || len(s.Notes()) != 1 {
		t.Errorf("Load gives %+v, notes %q", got, s.Notes())
	}

	// The next good Save ends the doubt.
	s.db.afterCommit = func() error { return errors.New("injected: sync failed") }
	if err := sv.Save(savedWith(testLease(2, 2))); err == nil {
		t.Fatal("no error")
	}
	s.db.afterCommit = nil
	mustSave(t, sv, want)
	mustClose(t, s)
	wantAdopted(t, dir, testOptions(), want)
}

// A full disk is no doubt: the old leases are adopted.
func TestFullDiskIsNoDoubt(t *testing.T) {
	var full *sqlite.Error
	if errors.As(sqliteError("x", "y", errDoubtful), &full) {
		t.Fatal("test is wrong")
	}
	dir, saved := newState(t)
	s := mustOpen(t, dir, testOptions())
	mustService(t, s, "default")
	generation := s.marks.generation()
	if _, err := s.db.db.Exec("PRAGMA max_page_count = 1"); err != nil {
		t.Fatal(err)
	}
	big := savedWith()
	for i := range int64(200) {
		big.Held = append(big.Held, testLease(i, 1))
	}
	err := mustService(t, s, "default").Save(big)
	wantFileError(t, err, filepath.Join(dir, databaseName), "full")
	if errors.Is(err, errDoubtful) || s.marks.generation() != generation {
		t.Errorf("doubt about: %v", err)
	}
	mustClose(t, s)
	wantAdopted(t, dir, testOptions(), saved)
}

// A crash between the write of state.db and that of the generation.
func TestCrashBeforeGenerationIsAdopted(t *testing.T) {
	dir, saved := newState(t)
	s := mustOpen(t, dir, testOptions())
	mustSave(t, mustService(t, s, "default"), saved)
	s.marks.setGeneration(s.marks.generation() - 1)
	mustClose(t, s)
	wantAdopted(t, dir, testOptions(), saved)
	wantAdopted(t, dir, testOptions(), saved)
}

func TestHostIdentity(t *testing.T) {
	identity := hostIdentity()
	if identity.BootID == "" {
		t.Skip("this host shows no boot ID")
	}
	if identity != hostIdentity() {
		t.Error("two readings differ")
	}
	t.Logf("machine ID found: %v", identity.MachineID != "")
	if b := bind(identity, fileID{}); identity.MachineID != "" && (b.machine == "" || strings.Contains(b.machine, identity.MachineID)) {
		t.Error("the binding shows the machine ID")
	}
}

func TestIDFiles(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	for i, content := range []string{"", "uninitialized\n", strings.Repeat("0", 32), "3d1219c7c4c5404aaa1f6d2a48adfda4\n"} {
		path := filepath.Join(dir, string(rune('a'+i)))
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	paths = slices.Insert(paths, 0, filepath.Join(dir, "missing"))
	if id := firstID(paths...); id != "3d1219c7c4c5404aaa1f6d2a48adfda4" {
		t.Errorf("found %q", id)
	}
	if id := firstID(paths[:4]...); id != "" {
		t.Errorf("found %q", id)
	}
	if id := cleanID(" AB43DF0E-ab38-420f-866e-31cba1780958\n"); id != "ab43df0e-ab38-420f-866e-31cba1780958" {
		t.Errorf("boot ID is %q", id)
	}
}
