// Package sqlite keeps sequences in a store file, for all processes of a host.
// Values are on the disk before they are handed out; see package sqlitefile.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/kazahana/kazahana/internal/sequence"
	"github.com/kazahana/kazahana/internal/sqlitefile"
)

// Tables are the statements that make this package's part of a store file.
var Tables = []string{
	`CREATE TABLE IF NOT EXISTS sequence (
		tenant     TEXT    NOT NULL,
		key        TEXT    NOT NULL,
		options    TEXT    NOT NULL,
		last       INTEGER NOT NULL,
		used_ms    INTEGER NOT NULL,
		expires_ms INTEGER,
		receipts   TEXT    NOT NULL,
		PRIMARY KEY (tenant, key)
	) STRICT, WITHOUT ROWID`,
	`CREATE INDEX IF NOT EXISTS sequence_expires ON sequence (expires_ms) WHERE expires_ms IS NOT NULL`,
}

// forgetMax is how many expired keys a call forgets: more than it can make, so
// that a backlog shrinks, and few enough that no call is burdened.
const forgetMax = 2

// Store is sequences in a store file, which it does not own.
type Store struct{ file *sqlitefile.File }

var (
	_ sequence.Store    = (*Store)(nil)
	_ sequence.Declarer = (*Store)(nil)
)

// New uses a file that was opened with Tables. Whoever opened it closes it.
func New(file *sqlitefile.File) *Store { return &Store{file: file} }

// Close implements sequence.Store. The file stays open.
func (s *Store) Close() error { return nil }

// Next implements sequence.Store.
func (s *Store) Next(ctx context.Context, r sequence.Request) (sequence.Range, error) {
	if err := r.Validate(); err != nil {
		return sequence.Range{}, err
	}
	var got sequence.Range
	err := s.file.Write(ctx, func(t *sqlitefile.Tx) error {
		before, err := read(t, r.Tenant, r.Key)
		if err != nil {
			return err
		}
		after, values, err := sequence.Next(before, r, t.NowMS)
		if err != nil {
			return err
		}
		got = values
		return write(t, r.Tenant, r.Key, after)
	}, nil)
	if err != nil {
		return sequence.Range{}, err
	}
	return got, nil
}

// Declare implements sequence.Declarer.
func (s *Store) Declare(ctx context.Context, d sequence.Declaration) error {
	if err := d.Validate(); err != nil {
		return err
	}
	return s.file.Write(ctx, func(t *sqlitefile.Tx) error {
		return write(t, d.Tenant, d.Key, sequence.Declared(d, t.NowMS))
	}, nil)
}

func read(t *sqlitefile.Tx, tenant, key string) (state sequence.State, err error) {
	var options, receipts string
	err = t.QueryRow("SELECT options, last, used_ms, receipts FROM sequence WHERE tenant = ? AND key = ?",
		[]any{tenant, key}, &options, &state.Last, &state.UsedMS, &receipts)
	if errors.Is(err, sql.ErrNoRows) {
		return sequence.State{}, nil
	}
	if err != nil {
		return sequence.State{}, err
	}
	if state.Options, err = sequence.ParseOptions(options); err == nil {
		state.Receipts, err = sequence.ParseReceipts(receipts)
	}
	if err != nil {
		return sequence.State{}, fmt.Errorf("sequence %q: %w", key, err)
	}
	return state, nil
}

func write(t *sqlitefile.Tx, tenant, key string, state sequence.State) error {
	var expires sql.NullInt64
	if ttl := state.Options.TTL; ttl > 0 {
		expires = sql.NullInt64{Int64: state.UsedMS + ttl.Milliseconds(), Valid: true}
	}
	if _, err := t.Exec(`INSERT INTO sequence (tenant, key, options, last, used_ms, expires_ms, receipts) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET options = excluded.options, last = excluded.last, used_ms = excluded.used_ms,
			expires_ms = excluded.expires_ms, receipts = excluded.receipts`,
		tenant, key, state.Options.Text(), state.Last, state.UsedMS, expires, state.ReceiptsText()); err != nil {
		return err
	}
	_, err := t.Exec(`DELETE FROM sequence WHERE (tenant, key) IN
		(SELECT tenant, key FROM sequence WHERE expires_ms <= ? ORDER BY expires_ms LIMIT ? + 0)`, t.NowMS, forgetMax)
	return err
}
