package sqlitefile

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"net/url"
	"slices"

	_ "modernc.org/sqlite" // the driver "sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

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
