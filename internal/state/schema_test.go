package state

import (
	"database/sql"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// withMigrations lets the package have later versions of the schema than it has.
func withMigrations(t *testing.T, statements ...string) {
	t.Helper()
	before := migrations
	migrations = statements
	t.Cleanup(func() { migrations = before })
}

func queryInt(t *testing.T, dir, query string) (n int64) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(dir, databaseName))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow(query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// What a daemon of before saved is there after a migration; and what a migration
// left is not touched by the daemon of before, which can go on without it.
func TestSchemaMigratedAndBack(t *testing.T) {
	dir, saved := newState(t)
	path := filepath.Join(dir, databaseName)
	t.Run("later", func(t *testing.T) {
		withMigrations(t, "ALTER TABLE service ADD COLUMN remark TEXT NOT NULL DEFAULT 'none'", "CREATE TABLE further (n INTEGER) STRICT; INSERT INTO further VALUES (7)")
		_, err := Inspect(dir, testOptions())
		wantFileError(t, err, path, "is of an older schema (1, this kazahanad has 3)")
		s := mustOpen(t, dir, testOptions())
		if notes := s.Notes(); len(notes) > 0 {
			t.Errorf("notes: %q", notes)
		}
		if got := mustService(t, s, "default").Load(); !reflect.DeepEqual(got, saved) {
			t.Errorf("loaded %+v, saved was %+v", got, saved)
		}
		mustClose(t, s)
		if n := queryInt(t, dir, "SELECT n FROM further JOIN pragma_user_version ON user_version = 3 JOIN service ON remark = 'none'"); n != 7 {
			t.Errorf("further has %d", n)
		}
		if _, err := Inspect(dir, testOptions()); err != nil {
			t.Errorf("Inspect after the migration: %v", err)
		}
	})
	before := contentsOf(t, dir)[databaseName]
	_, err := Open(dir, testOptions())
	wantFileError(t, err, path, "was written by a newer kazahanad (schema 3, this one knows up to 1); upgrade this one")
	if contentsOf(t, dir)[databaseName] != before {
		t.Error("the refused file was changed")
	}
	// As docs/compatibility.md says: the file is moved away, the marks stay.
	if err := os.Rename(path, path+".newer"); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, dir, testOptions())
	if notes := s.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "IDs stay above the marks") {
		t.Errorf("notes: %q", notes)
	}
	if sv := mustService(t, s, "default"); sv.Mark() != 1_800_000_000_000 || len(sv.Load().Held) != 0 {
		t.Errorf("mark %d, %+v", sv.Mark(), sv.Load())
	}
}

func TestSchemaMigrationThatFails(t *testing.T) {
	dir, saved := newState(t)
	t.Run("later", func(t *testing.T) {
		withMigrations(t, "CREATE TABLE further (n INTEGER) STRICT", "INSERT INTO nowhere VALUES (1)")
		_, err := Open(dir, testOptions())
		wantFileError(t, err, filepath.Join(dir, databaseName), "")
		if !strings.Contains(err.Error(), "nowhere") {
			t.Errorf("the error: %v", err)
		}
	})
	if n := queryInt(t, dir, "SELECT count(*) FROM sqlite_schema WHERE name = 'further'"); n != 0 {
		t.Error("half of a migration is in the file")
	}
	if got := mustService(t, mustOpen(t, dir, testOptions()), "default").Load(); !reflect.DeepEqual(got, saved) {
		t.Errorf("loaded %+v, saved was %+v", got, saved)
	}
}

func TestMarksOfAnotherByteOrder(t *testing.T) {
	dir, _ := newState(t)
	change(t, filepath.Join(dir, marksName), func(b []byte) []byte {
		b[8], b[9], b[10], b[11] = b[11], b[10], b[9], b[8]
		return b
	})
	_, err := Open(dir, testOptions())
	wantFileError(t, err, filepath.Join(dir, marksName), "another byte order")
}
