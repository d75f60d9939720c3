package sqlite_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kazahana/kazahana/internal/backend"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/testkit/disktest"
	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// What other programs do to a lease file, beside its records, fences nothing: while it is in
// use, and while it is not.
func TestOtherProgramsFenceNothing(t *testing.T) {
	ring.All(t)
	path := filepath.Join(t.TempDir(), "leases.db")
	cfg := backend.LeaseFile{Path: path, Services: defaultServices(), LiveDir: disktest.Memory(t)}
	for _, guest := range []struct{ name, sql string }{
		{"tables of Litestream", litestream},
		{"VACUUM", "VACUUM"},
		{"ANALYZE", "ANALYZE"},
		{"a backup", ".backup '" + filepath.Join(t.TempDir(), "backup.db") + "'"},
		{"an index", "CREATE INDEX IF NOT EXISTS theirs ON record (mark)"},
		{"a search table", "CREATE VIRTUAL TABLE IF NOT EXISTS theirs_fts USING fts5(name); INSERT INTO theirs_fts SELECT key FROM record"},
		{"a view and a table of its rows", "CREATE VIEW IF NOT EXISTS theirs_v AS SELECT * FROM record; CREATE TABLE IF NOT EXISTS theirs_t AS SELECT * FROM record; INSERT INTO theirs_t SELECT * FROM record"},
		{"PRAGMA optimize", "PRAGMA optimize"},
		{"a log for a while", "PRAGMA journal_mode=WAL; " + litestream + "; PRAGMA journal_mode=DELETE"},
	} {
		t.Run(guest.name, func(t *testing.T) {
			visit := func() {
				t.Helper()
				if said, err := exec.Command("sqlite3", "-bail", "-cmd", ".timeout 60000", path, guest.sql).CombinedOutput(); err != nil {
					t.Fatalf("sqlite3: %v: %s", err, said)
				}
			}
			p := openLeases(t, cfg)
			grants(t, p)
			visit()
			grants(t, p)
			must.Succeed(t, p.Close())
			visit()
			p = openLeases(t, cfg)
			grants(t, p)
			must.Succeed(t, p.Init(t.Context(), ""))
			visit()
			must.Succeed(t, p.Close())
			grants(t, openLeases(t, cfg))
		})
	}
}

// litestream is what Litestream 0.3 writes into a file that it replicates, beside its log.
const litestream = `CREATE TABLE IF NOT EXISTS _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER);
	CREATE TABLE IF NOT EXISTS _litestream_lock (id INTEGER);
	INSERT INTO _litestream_seq (id, seq) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET seq = seq + 1`

func grants(t *testing.T, p *leases) {
	t.Helper()
	if _, err := p.Acquire(context.Background(), provider.AcquireRequest{}); err != nil || p.Fenced() != nil {
		t.Fatalf("%v; fenced: %v", err, p.Fenced())
	}
}
