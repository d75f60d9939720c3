package testkit

import (
	"context"
	"database/sql"
	"encoding/json"
	"os"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
)

// LockLeases holds the write lock of a SQLite file, as a process that hangs in
// the middle of a grant would.
func LockLeases(t *testing.T, path string) (unlock func()) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?mode=rw&_pragma=busy_timeout(10000)")
	must.Succeed(t, err)
	conn, err := db.Conn(context.Background())
	must.Succeed(t, err)
	if _, err := conn.ExecContext(context.Background(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	over := false
	unlock = func() {
		if !over {
			over = true
			_, _ = conn.ExecContext(context.Background(), "ROLLBACK")
			_ = conn.Close()
			_ = db.Close()
		}
	}
	t.Cleanup(unlock)
	return unlock
}

func DecodeJSON(t *testing.T, text string, target any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), target); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

func WriteFile(t *testing.T, path, content string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(path, []byte(content), 0o600))
}

func Rename(t *testing.T, from, to string) {
	t.Helper()
	must.Succeed(t, os.Rename(from, to))
}

func Mkdir(t *testing.T, path string) {
	t.Helper()
	must.Succeed(t, os.Mkdir(path, 0o700))
}
