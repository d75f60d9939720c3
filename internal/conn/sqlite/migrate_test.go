package sqlitefile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Three versions of one kind, as releases would have had them.
var (
	firstDiary = Kind{
		Name: "diary", ApplicationID: 0x64696172,
		Schema: []string{"CREATE TABLE entry (day INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT"},
		Probe:  "SELECT count(*) FROM entry", Moved: "put it back", Damaged: "restore it",
	}
	secondDiary = later(firstDiary, "ALTER TABLE entry ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'")
	thirdDiary  = later(secondDiary, "CREATE TABLE place (name TEXT PRIMARY KEY) STRICT", "INSERT INTO place SELECT DISTINCT mood FROM entry")
)

func later(k Kind, statements ...string) Kind {
	k.Migrations = append(append([][]string(nil), k.Migrations...), statements)
	return k
}

func openKind(t *testing.T, path string, k Kind) (*File, error) {
	t.Helper()
	f, err := Open(t.Context(), path, &k, Options{})
	if err == nil {
		t.Cleanup(func() { _ = f.Close() })
	}
	return f, err
}

func mustOpenKind(t *testing.T, path string, k Kind) *File {
	t.Helper()
	f, err := openKind(t, path, k)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func write(f *File, query string, args ...any) error {
	return f.Write(context.Background(), func(tx *Tx) error {
		_, err := tx.Exec(query, args...)
		return err
	}, nil)
}

func readText(t *testing.T, f *File, query string) string {
	t.Helper()
	text, err := Read(t.Context(), f, func(s *Session) (text string, err error) { return text, s.QueryRow(query, nil, &text) })
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// oldDiary is a file of the first version with one entry, which nobody has open.
func oldDiary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "diary.db")
	f := mustOpenKind(t, path, firstDiary)
	if err := write(f, "INSERT INTO entry VALUES (1, 'rain')"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOlderSchemaIsMigrated(t *testing.T) {
	path := oldDiary(t)
	f := mustOpenKind(t, path, thirdDiary)
	if got := readText(t, f, "SELECT text || ' ' || mood || ' ' || (SELECT name FROM place) FROM entry"); got != "rain calm calm" {
		t.Errorf("the migrated file has %q", got)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := readText(t, mustOpenKind(t, path, thirdDiary), "SELECT name FROM place"); got != "calm" {
		t.Errorf("opened again: %q", got)
	}
	// Going back: the program of before uses the copy that was kept.
	kept := path + ".schema-1"
	if info, err := os.Stat(kept); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the copy: %v %v", info, err)
	}
	if got := readText(t, mustOpenKind(t, kept, firstDiary), "SELECT text FROM entry"); got != "rain" {
		t.Errorf("the copy has %q", got)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := oldDiary(t)
	if err := mustOpenKind(t, path, secondDiary).Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = openKind(t, path, firstDiary)
	var schema *SchemaError
	if !errors.As(err, &schema) || *schema != (SchemaError{"diary", 2, 1}) {
		t.Fatalf("opened by the program of before: %v", err)
	}
	for _, part := range []string{path, "written by a newer kazahanad (schema 2, this one knows up to 1)", "docs/compatibility.md"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("the file was changed (%v)", err)
	}
}

// A process that has the file open when a newer one migrates it stops using it,
// rather than to write as before.
func TestMigrationUnderARunningProcess(t *testing.T) {
	path := oldDiary(t)
	running := mustOpenKind(t, path, firstDiary)
	if err := write(running, "INSERT INTO entry VALUES (2, 'sun')"); err != nil {
		t.Fatal(err)
	}
	newer := mustOpenKind(t, path, secondDiary)
	var schema *SchemaError
	if err := write(running, "INSERT INTO entry VALUES (3, 'snow')"); !errors.As(err, &schema) {
		t.Errorf("a write of the older process: %v", err)
	}
	_, err := Read(t.Context(), running, func(*Session) (int, error) { t.Error("it reads"); return 0, nil })
	if !errors.As(err, &schema) || !strings.Contains(err.Error(), path) {
		t.Errorf("a read of the older process: %v", err)
	}
	if got := readText(t, newer, "SELECT group_concat(text) FROM entry"); got != "rain,sun" {
		t.Errorf("the file has %q", got)
	}
}

// A migration that fails leaves the file as it was.
func TestFailedMigration(t *testing.T) {
	path := oldDiary(t)
	_, err := openKind(t, path, later(secondDiary, "CREATE TABLE place (name TEXT) STRICT", "INSERT INTO nowhere VALUES (1)"))
	if err == nil || !strings.Contains(err.Error(), "from schema 2 to 3") {
		t.Errorf("the error: %v", err)
	}
	f := mustOpenKind(t, path, firstDiary)
	if got := readText(t, f, "SELECT text || (SELECT count(*) FROM sqlite_schema) FROM entry"); got != "rain2" {
		t.Errorf("the file has %q", got)
	}
}

// Between the first look and the lock another process may have migrated the file,
// to this version or a newer one.
func TestMigrationThatCameFirst(t *testing.T) {
	path := oldDiary(t)
	if err := mustOpenKind(t, path, secondDiary).Close(); err != nil {
		t.Fatal(err)
	}
	s, err := Connect(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var schema *SchemaError
	if err := firstDiary.migrateLocked(t.Context(), s, path); !errors.As(err, &schema) {
		t.Errorf("a newer process came first: %v", err)
	}
	if err := secondDiary.migrateLocked(t.Context(), s, path); err != nil {
		t.Errorf("a process of this version came first: %v", err)
	}
	if found, err := secondDiary.found(s); found != 2 || err != nil {
		t.Errorf("the file is of schema %d (%v)", found, err)
	}
	if copies, err := filepath.Glob(path + ".schema-*"); err != nil || !slices.Equal(copies, []string{path + ".schema-1"}) {
		t.Errorf("copies: %q (%v)", copies, err)
	}
}

// Processes that start together migrate once, and none fails.
func TestMigrationByManyAtOnce(t *testing.T) {
	path := oldDiary(t)
	once := later(firstDiary, "CREATE TABLE migrated (n INTEGER) STRICT", "INSERT INTO migrated VALUES (1)")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			f, err := Open(context.Background(), path, &once, Options{})
			if err != nil {
				t.Error(err)
				return
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := readText(t, mustOpenKind(t, path, once), "SELECT count(*) || ' ' || (SELECT text FROM entry) FROM migrated"); got != "1 rain" {
		t.Errorf("the file has %q", got)
	}
	if got := readText(t, mustOpenKind(t, path+".schema-1", firstDiary), "SELECT text FROM entry"); got != "rain" {
		t.Errorf("the copy has %q", got)
	}
}
