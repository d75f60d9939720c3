package sqlitefile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
)

// Backup writes a consistent copy of the database, which may be in use, to a file that must
// not exist. The copy holds the original's secrets, and its mode is 0600. A copy that is
// restored is fenced.
func (f *File) Backup(ctx context.Context, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return fmt.Errorf("%s: %w; a backup overwrites nothing", to, fs.ErrExist)
	}
	temp := fmt.Sprintf("%s.new-%08x", to, rand.Uint32())
	done := make(chan error, 1)
	go func() {
		err := copyTo(ctx, f.resolved, temp)
		if err == nil {
			// A link, unlike a rename, replaces nothing.
			err = errors.Join(os.Link(temp, to), os.Remove(temp), syncDir(filepath.Dir(to)))
		}
		done <- err
	}()
	select {
	case err := <-done:
		return f.explain(err)
	case <-ctx.Done():
		return f.explain(ctx.Err())
	}
}

// copyTo copies the database to a new file, and syncs it. If it fails, it leaves nothing
// behind.
func copyTo(ctx context.Context, path, to string) error {
	// Create it first for its mode: it holds the same secrets as the original.
	made, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := made.Close(); err != nil {
		return err
	}
	if err := vacuumInto(ctx, path, to); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	if made, err = os.OpenFile(to, os.O_WRONLY, 0); err != nil {
		return err
	}
	return errors.Join(made.Sync(), made.Close())
}

func vacuumInto(ctx context.Context, path, to string) error {
	reader, err := Connect(ctx, path)
	if err != nil {
		return err
	}
	_, err = reader.conn.ExecContext(ctx, "VACUUM INTO ?", to)
	return errors.Join(err, reader.Close())
}

// Peek reads a file's fence without using the file, and whether it is a copy, which will be
// fenced at its first use. db is a read-only connection to it.
func Peek(ctx context.Context, db *sql.DB, path string) (fence Fence, isCopy bool, err error) {
	id, err := identityOf(path)
	if err != nil {
		return Fence{}, false, err
	}
	var recorded identity
	err = db.QueryRowContext(ctx, "SELECT id, inode, born_ns, forgot, trusted, fence_from_ms, fence_until_ms, fence_reason FROM life WHERE one = 1").
		Scan(&fence.Life, &recorded.Inode, &recorded.BornNS, &fence.Forgot, &fence.Trusted, &fence.FromMS, &fence.UntilMS, &fence.Reason)
	return fence, !id.is(recorded), err
}

// OpenForReading opens a file without changing anything. Without a log no process uses the
// file, and it is opened as immutable. Otherwise it is read together with the log, without
// touching the log's index.
func OpenForReading(path string) (db *sql.DB, resolved string, err error) {
	resolved, err = filepath.EvalSymlinks(path)
	if err != nil {
		return nil, "", err
	}
	query := "mode=ro&readonly_shm=1&_pragma=busy_timeout(2000)"
	if _, err := os.Stat(resolved + "-wal"); err != nil {
		query = "mode=ro&immutable=1"
	}
	dsn := url.URL{Scheme: "file", Path: resolved, RawQuery: query}
	db, err = sql.Open("sqlite", dsn.String())
	return db, resolved, err
}

// ReadOnly has look read a file, without changing anything.
func ReadOnly(ctx context.Context, path string, look func(*Session) error) error {
	db, _, err := OpenForReading(path)
	if err != nil {
		return err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	s := &Session{db: db, conn: conn, statements: map[string]*sql.Stmt{}}
	return errors.Join(look(s), s.Close())
}
