package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"net/url"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// session is one connection and its prepared statements. It is used by one
// goroutine at a time.
//
// Statements run without a context: each takes microseconds, and a cancelled
// one costs a goroutine. Contexts are watched where waiting happens, between
// attempts to get the lock and around whole operations.
type session struct {
	db         *sql.DB
	conn       *sql.Conn
	statements map[string]*sql.Stmt
}

// connect opens the file, which must exist. It reads nothing from it yet.
func connect(ctx context.Context, path string) (*session, error) {
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: "mode=rw"}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &session{db: db, conn: conn, statements: map[string]*sql.Stmt{}}, nil
}

func (s *session) close() error {
	var errs []error
	for _, st := range s.statements {
		errs = append(errs, st.Close())
	}
	return errors.Join(append(errs, s.conn.Close(), s.db.Close())...)
}

// execOnce runs a statement that is not worth preparing.
func (s *session) execOnce(query string) error {
	_, err := s.conn.ExecContext(context.Background(), query)
	return err
}

func (s *session) prepared(query string) (*sql.Stmt, error) {
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

func (s *session) exec(query string, args ...any) (sql.Result, error) {
	st, err := s.prepared(query)
	if err != nil {
		return nil, err
	}
	return st.ExecContext(context.Background(), args...)
}

// queryRow reads one row; sql.ErrNoRows when there is none.
func (s *session) queryRow(query string, args []any, dest ...any) error {
	st, err := s.prepared(query)
	if err != nil {
		return err
	}
	return st.QueryRowContext(context.Background(), args...).Scan(dest...)
}

// queryRows calls each for every row, which scans it.
func (s *session) queryRows(query string, args []any, each func(scan func(dest ...any) error) error) (err error) {
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
