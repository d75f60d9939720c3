// Package sqlite keeps sequences in a store file, for all processes of a host.
// Values are on the disk before they are handed out; see package sqlitefile.
//
// A file that was put back from a backup may have forgotten values. It hands out
// none of a key (sequence.NextInDoubt) until an operator says how the key goes on
// (Declare), or that nothing is missing (sqlitefile.File.Init). So each row names
// the file's life in which it was written last.
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
		life       TEXT    NOT NULL,
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
	err := s.file.Write(ctx, func(t *sqlitefile.Tx) (err error) {
		got, err = next(t, r)
		return err
	}, nil)
	if err != nil {
		return sequence.Range{}, err
	}
	return got, nil
}

func next(t *sqlitefile.Tx, r sequence.Request) (sequence.Range, error) {
	before, life, err := read(t, r.Tenant, r.Key)
	if err != nil {
		return sequence.Range{}, err
	}
	fence := t.Fence()
	if fence.Trusted || life == fence.Life {
		after, got, err := sequence.Next(before, r, t.NowMS)
		if err != nil {
			return sequence.Range{}, err
		}
		return got, write(t, r.Tenant, r.Key, after, fence.Life)
	}
	after, got, over, err := sequence.NextInDoubt(before, r, t.NowMS, sequence.Doubt{FromMS: fence.FromMS, Reason: fence.Reason})
	if err != nil {
		return sequence.Range{}, err
	}
	if over {
		life = fence.Life
	}
	return got, write(t, r.Tenant, r.Key, after, life)
}

// Declare implements sequence.Declarer.
func (s *Store) Declare(ctx context.Context, d sequence.Declaration) error {
	if err := d.Validate(); err != nil {
		return err
	}
	return s.file.Write(ctx, func(t *sqlitefile.Tx) error {
		return write(t, d.Tenant, d.Key, sequence.Declared(d, t.NowMS), t.Fence().Life)
	}, nil)
}

// read is the key's state, and the life of the file since which all is known of it.
func read(t *sqlitefile.Tx, tenant, key string) (state sequence.State, life string, err error) {
	var options, receipts string
	err = t.QueryRow("SELECT options, last, used_ms, receipts, life FROM sequence WHERE tenant = ? AND key = ?",
		[]any{tenant, key}, &options, &state.Last, &state.UsedMS, &receipts, &life)
	if errors.Is(err, sql.ErrNoRows) {
		return sequence.State{}, "", nil
	}
	if err != nil {
		return sequence.State{}, "", err
	}
	if state.Options, err = sequence.ParseOptions(options); err == nil {
		state.Receipts, err = sequence.ParseReceipts(receipts)
	}
	if err != nil {
		return sequence.State{}, "", fmt.Errorf("sequence %q: %w", key, err)
	}
	return state, life, nil
}

// write keeps the state. life is the one since which everything is known of the key.
func write(t *sqlitefile.Tx, tenant, key string, state sequence.State, life string) error {
	var expires sql.NullInt64
	if ttl := state.Options.TTL; ttl > 0 {
		expires = sql.NullInt64{Int64: state.UsedMS + ttl.Milliseconds(), Valid: true}
	}
	if _, err := t.Exec(`INSERT INTO sequence (tenant, key, options, last, used_ms, expires_ms, receipts, life) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET options = excluded.options, last = excluded.last, used_ms = excluded.used_ms,
			expires_ms = excluded.expires_ms, receipts = excluded.receipts, life = excluded.life`,
		tenant, key, state.Options.Text(), state.Last, state.UsedMS, expires, state.ReceiptsText(), life); err != nil {
		return err
	}
	_, err := t.Exec(`DELETE FROM sequence WHERE (tenant, key) IN
		(SELECT tenant, key FROM sequence WHERE expires_ms <= ? ORDER BY expires_ms LIMIT ? + 0)`, t.NowMS, forgetMax)
	return err
}
