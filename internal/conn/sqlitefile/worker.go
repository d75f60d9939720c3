package sqlitefile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	_ "modernc.org/sqlite" // the driver "sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/kazahana/kazahana/internal/conn/connurl"
)

// work runs the operations one after the other: SQLite has one writer anyway. It has a
// goroutine of its own, so that a caller need not wait for a disk that hangs in fsync.
func (f *File) work() {
	defer close(f.stopped)
	for {
		select {
		case task := <-f.tasks:
			task()
		case j := <-f.writes:
			group := waiting(f.writes, j)
			f.writeAll(group)
			f.maintain(len(group))
		case <-f.closing:
			f.closeErr = f.explain(f.leave())
			return
		}
	}
}

// Read calls op in a transaction that only reads: all of its statements see one state of the
// file. If ctx ends or the file is closed first, op may still be running.
func Read[T any](ctx context.Context, f *File, op func(*Session) (T, error)) (T, error) {
	return inWorker(ctx, f, func() (value T, err error) {
		err = f.read(ctx, func(s *Session) (err error) {
			value, err = op(s)
			return err
		})
		return value, err
	})
}

// inWorker calls do in the worker, between operations. If ctx ends or the file is closed
// first, do may still be running.
func inWorker[T any](ctx context.Context, f *File, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	task := func() {
		value, err := do()
		done <- result{value, err}
	}
	r, err := await(ctx, f, f.tasks, task, done)
	if err != nil {
		return r.value, err
	}
	return r.value, r.err
}

// read runs op in the worker.
func (f *File) read(ctx context.Context, op func(*Session) error) error {
	if _, err := f.begin(ctx, "BEGIN", until(ctx, f.closing)); err != nil {
		return f.explain(err)
	}
	err := op(f.session)
	if undone := f.session.rollback(); err == nil {
		err = undone
	}
	if err == nil {
		err = f.files.check()
	}
	return f.explain(err)
}

// await sends a request to the worker and returns the result.
func await[W, R any](ctx context.Context, f *File, queue chan<- W, what W, done <-chan R) (R, error) {
	var none R
	if err := ctx.Err(); err != nil {
		return none, connurl.NotSent(err)
	}
	select {
	case queue <- what:
	case <-ctx.Done():
		return none, connurl.NotSent(fmt.Errorf("sqlite:%s: the operation before has not ended, and the disk may not answer: %w", f.path, ctx.Err()))
	case <-f.closing:
		return none, connurl.NotSent(ErrClosed)
	}
	select {
	case r := <-done:
		return r, nil
	case <-ctx.Done():
		return none, fmt.Errorf("sqlite:%s: the disk does not answer, or another process holds the file's lock: %w", f.path, ctx.Err())
	}
}

// The log is written into the main file when it has maxLog pages, SQLite's own limit; its
// length and the room are looked at after askAfter operations.
const (
	maxLog   = 1000
	askAfter = 16
)

// maintain writes a long log into the main file, and makes room. SQLite itself would write the
// log at a commit, and the main file would seem overwritten. A failure is tried again later:
// a commit reports the fault of a disk.
func (f *File) maintain(operations int) {
	if f.unasked += operations; f.unasked < askAfter || f.session == nil {
		return
	}
	f.unasked = 0
	defer f.reserve()
	if !f.kind.Owned {
		return
	}
	var busy, pages, written int
	if err := f.session.QueryRow("PRAGMA wal_checkpoint(NOOP)", nil, &busy, &pages, &written); err != nil || pages < maxLog {
		return
	}
	f.allocated = 0 // a checkpoint may drop the room behind the file's end
	f.writingMain(func() {
		_ = f.session.QueryRow("PRAGMA wal_checkpoint(PASSIVE)", nil, &busy, &pages, &written)
	})
}

// Session is a connection and its prepared statements, for one goroutine at a time: File
// lends it to one operation after the other.
//
// Statements run without a context: each takes microseconds, and a context costs a
// goroutine. Contexts are watched while an operation waits, for a lock or for its turn.
type Session struct {
	db         *sql.DB
	conn       *sql.Conn
	statements map[string]*sql.Stmt
	changes    changes
	limit      int64 // bytes to which the file may grow while the disk is full; 0: it is not
	fence      Fence // when the present operation began
	lastMS     int64 // of the latest commit at that time
}

// Fence is the file's fence at the beginning of the operation.
func (s *Session) Fence() Fence { return s.fence }

// LastMS is the time of the latest commit that changed anything, in Unix ms by the clock of
// its process. It does not go back.
func (s *Session) LastMS() int64 { return s.lastMS }

// Connect opens an existing file without any check, to look at a file that is not in use.
// It reads nothing yet.
func Connect(ctx context.Context, path string) (*Session, error) {
	return connect(ctx, path, "mode=rw")
}

func connect(ctx context.Context, path, query string) (*Session, error) {
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: query}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &Session{db: db, conn: conn, statements: map[string]*sql.Stmt{}}, nil
}

// ReadOnly has look read a file that processes share, and changes nothing. A file with a log is
// another program's, and cannot be read.
func ReadOnly(ctx context.Context, path string, look func(*Session) error) error {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	if _, err := os.Stat(resolved + "-wal"); err == nil {
		return errUnrecovered
	}
	s, err := connect(ctx, resolved, "mode=ro&_pragma=busy_timeout(2000)")
	if err != nil {
		return err
	}
	return errors.Join(look(s), s.Close())
}

// Close ends the connection.
func (s *Session) Close() error {
	var errs []error
	for _, st := range s.statements {
		errs = append(errs, st.Close())
	}
	return errors.Join(append(errs, s.hook(nil), s.conn.Close(), s.db.Close())...)
}

// ExecOnce runs a statement without preparing it.
func (s *Session) ExecOnce(query string) error {
	_, err := s.conn.ExecContext(context.Background(), query)
	return err
}

// Statements returns the prepared statements, for tests of their query plans.
func (s *Session) Statements() []string { return slices.Collect(maps.Keys(s.statements)) }

// Size is how many bytes of the main file hold data; free pages are left out.
func (s *Session) Size() (int64, error) {
	var pages, free, size int64
	err := s.QueryRow("SELECT page_count, freelist_count, page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size", nil, &pages, &free, &size)
	return (pages - free) * size, err
}

func (s *Session) prepared(query string) (*sql.Stmt, error) {
	if st, ok := s.statements[query]; ok {
		return st, nil
	}
	st, err := s.conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	s.statements[query] = st
	return st, nil
}

// Exec runs a statement.
func (s *Session) Exec(query string, args ...any) (sql.Result, error) {
	st, err := s.prepared(query)
	if err != nil {
		return nil, err
	}
	return st.ExecContext(context.Background(), args...)
}

// QueryRow reads one row; the error is sql.ErrNoRows if there is none.
func (s *Session) QueryRow(query string, args []any, dest ...any) error {
	st, err := s.prepared(query)
	if err != nil {
		return err
	}
	return st.QueryRowContext(context.Background(), args...).Scan(dest...)
}

// QueryRows calls each for every row; each scans it.
func (s *Session) QueryRows(query string, args []any, each func(scan func(dest ...any) error) error) (err error) {
	st, err := s.prepared(query)
	if err != nil {
		return err
	}
	rows, err := st.QueryContext(context.Background(), args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// rollback ends a transaction that failed. After some errors SQLite has ended it already,
// and answers with its general error: that is no error here.
func (s *Session) rollback() error {
	if _, err := s.Exec("ROLLBACK"); primaryCode(err) != sqlite3.SQLITE_ERROR {
		return err
	}
	return nil
}
