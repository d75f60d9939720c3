// Package sqlite keeps activation records in a store file, for all processes of a
// host. They are on the disk before they count; see package sqlitefile.
package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/placement/storage"
)

// Tables are the statements that make this package's part of a store file.
var Tables = []string{
	`CREATE TABLE IF NOT EXISTS activation (
		name  TEXT NOT NULL PRIMARY KEY,
		value BLOB NOT NULL
	) STRICT, WITHOUT ROWID`,
}

// New uses a file that was opened with Tables. Whoever opened it closes it.
func New(file *sqlitefile.File) storage.Storage { return storage.New(cells{file}) }

type cells struct{ file *sqlitefile.File }

// Close implements storage.Cells. The file stays open.
func (c cells) Close() error { return nil }

// Read implements storage.Cells.
func (c cells) Read(ctx context.Context, name string) ([]byte, error) {
	return sqlitefile.Read(ctx, c.file, func(s *sqlitefile.Session) ([]byte, error) { return read(s, name) })
}

// Swap implements storage.Cells.
func (c cells) Swap(ctx context.Context, name string, before, next []byte) (bool, error) {
	err := c.file.Write(ctx, func(t *sqlitefile.Tx) error {
		now, err := read(t.Session, name)
		if err != nil {
			return err
		}
		if !bytes.Equal(now, before) {
			return errOther
		}
		_, err = t.Exec("INSERT INTO activation (name, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", name, next)
		return err
	}, nil)
	if errors.Is(err, errOther) {
		return false, nil
	}
	return err == nil, err
}

var errOther = errors.New("another value is stored")

func read(s *sqlitefile.Session, name string) (value []byte, err error) {
	err = s.QueryRow("SELECT value FROM activation WHERE name = ?", []any{name}, &value)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return value, err
}
