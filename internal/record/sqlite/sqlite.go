// Package sqlite keeps records in a SQLite file. A rule runs inside the transaction that
// carries out its writes, so that nothing needs to be compared. A rule runs again only where its
// transaction was undone. A change is on the disk before it is answered; see package sqlitefile.
//
// Time is the clock of the process that has the file's lock, and does not go back
// from one commit to the next: a clock that steps back stands still, so that terms
// become longer and not shorter. The rules of leases need no such time: in an area with
// FollowsClock it is the clock's. A file that may have forgotten something says so in
// View.Fence, in a new Life, and its floor rises with the time from then on.
package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/record"
)

// Tables are the statements that make this package's part of a store file.
var Tables = []string{
	`CREATE TABLE record (
		key    TEXT    PRIMARY KEY,
		value  BLOB    NOT NULL,
		end_ms INTEGER,
		due_ms INTEGER,
		mark   INTEGER NOT NULL
	) STRICT, WITHOUT ROWID`,
	`CREATE INDEX record_due ON record (due_ms) WHERE due_ms IS NOT NULL`,
	`CREATE TABLE record_floor (
		one   INTEGER PRIMARY KEY CHECK (one = 1),
		floor INTEGER NOT NULL,
		keys  INTEGER NOT NULL
	) STRICT`,
}

// sweepMax is how many records that are due a change deletes: more than it can make,
// so that a backlog shrinks, and few enough that no change is burdened.
const sweepMax = 2 * record.MaxWrites

// Store implements record.Store in a store file, which it does not own.
type Store struct {
	file *sqlitefile.File
	area record.Area
}

// New uses a file that was opened with Tables, and with the area's longest grant as its TermMS or
// MaxTermMS. The file's owner closes it.
func New(file *sqlitefile.File, area record.Area) *Store { return &Store{file, area} }

// now is the file's clock, which does not go back where the area relies on that.
func (st *Store) now(s *sqlitefile.Session, nowMS int64) int64 {
	if st.area.FollowsClock {
		return nowMS
	}
	return max(nowMS, s.LastMS())
}

// Value returns the value of a record, nil where there is none: for a look at a file that is not
// in use.
func Value(s *sqlitefile.Session, key string) (value []byte, err error) {
	err = s.QueryRow("SELECT value FROM record WHERE key = ?", []any{key}, &value)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return value, err
}

// Change implements record.Store. Where the rule finds no room, records that are due make some, and
// the rule runs again.
func (s *Store) Change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, error) {
	if err := ask.Validate(); err != nil {
		return 0, err
	}
	rule = s.area.Checked(ask, rule)
	for {
		atMS, swept, err := s.change(ctx, ask, rule)
		if !swept {
			return atMS, err
		}
	}
}

// change is Change once. swept reports that records were deleted, and nothing else was done.
func (s *Store) change(ctx context.Context, ask record.Ask, rule record.Rule) (int64, bool, error) {
	var atMS int64 // the operation may still be running when Write returns an error
	var noRoom bool
	err := s.file.Write(ctx, func(t *sqlitefile.Tx) error {
		atMS, noRoom = s.now(t.Session, t.NowMS), false
		v, err := s.view(t.Session, ask, atMS)
		if err != nil {
			return err
		}
		writes, err := rule(v)
		if errors.As(err, new(*record.FullError)) {
			noRoom = true
			swept, failed := sweep(t, atMS)
			if failed != nil || swept == 0 {
				return cmp.Or(failed, err)
			}
			return count(t, -swept)
		}
		if err != nil || len(writes) == 0 {
			return err
		}
		more := 0
		for _, w := range writes {
			_, exists := v.Records[w.Key]
			if err := write(t, w, atMS); err != nil {
				return err
			}
			if exists {
				more--
			}
			if w.Value != nil {
				more++
			}
		}
		swept, err := sweep(t, atMS)
		if err != nil {
			return err
		}
		return count(t, more-swept)
	})
	if err != nil {
		return 0, false, err
	}
	return atMS, noRoom, nil
}

func write(t *sqlitefile.Tx, w record.Write, atMS int64) error {
	if w.Value == nil {
		return remove(t, w.Key, w.Mark)
	}
	var end, due sql.NullInt64
	if w.TermMS > 0 {
		end = sql.NullInt64{Int64: atMS + w.TermMS, Valid: true}
	}
	if w.GrantMS > 0 {
		t.Grants(atMS + w.GrantMS)
	}
	if w.TermMS > 0 || w.KeepMS > 0 {
		due = sql.NullInt64{Int64: atMS + w.TermMS + w.KeepMS, Valid: true}
	}
	_, err := t.Exec(`INSERT INTO record (key, value, end_ms, due_ms, mark) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE
		SET value = excluded.value, end_ms = excluded.end_ms, due_ms = excluded.due_ms, mark = excluded.mark`,
		w.Key, w.Value, end, due, w.Mark)
	return err
}

// remove deletes a record, if it is there, and raises the floor.
func remove(t *sqlitefile.Tx, key string, mark int64) error {
	var before int64
	err := t.QueryRow("DELETE FROM record WHERE key = ? RETURNING mark", []any{key}, &before)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	if mark = max(mark, before); mark == 0 {
		return nil
	}
	_, err = t.Exec(`INSERT INTO record_floor (one, floor, keys) VALUES (1, ?, 0)
		ON CONFLICT DO UPDATE SET floor = max(floor, excluded.floor)`, mark)
	return err
}

// sweep deletes records that are due, and returns how many.
func sweep(t *sqlitefile.Tx, atMS int64) (int, error) {
	var keys []string
	if err := t.QueryRows("SELECT key FROM record WHERE due_ms <= ? ORDER BY due_ms LIMIT ? + 0", []any{atMS, sweepMax},
		func(scan func(...any) error) error {
			var key string
			err := scan(&key)
			keys = append(keys, key)
			return err
		}); err != nil {
		return 0, err
	}
	for _, key := range keys {
		if err := remove(t, key, 0); err != nil {
			return 0, err
		}
	}
	return len(keys), nil
}

// count keeps how many records there are.
func count(t *sqlitefile.Tx, more int) error {
	if more == 0 {
		return nil
	}
	_, err := t.Exec(`INSERT INTO record_floor (one, floor, keys) VALUES (1, 0, ?)
		ON CONFLICT DO UPDATE SET keys = keys + excluded.keys`, more)
	return err
}

// view reads the records that the ask names. Inside of a transaction, all of it is of one moment.
func (st *Store) view(s *sqlitefile.Session, ask record.Ask, nowMS int64) (record.View, error) {
	fence := s.Fence()
	v := record.View{
		Records: map[string]record.Record{}, NowMS: nowMS, Life: fence.Life,
		Fence: record.Fence{Doubt: !fence.Trusted, FromMS: fence.FromMS, UntilMS: fence.UntilMS, Reason: fence.Reason},
	}
	for _, key := range ask.Keys {
		var value []byte
		var end sql.NullInt64
		err := s.QueryRow("SELECT value, end_ms FROM record WHERE key = ?", []any{key}, &value, &end)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return record.View{}, fmt.Errorf("record %q: %w", key, err)
		}
		v.Records[key] = recordOf(value, end, nowMS)
	}
	err := s.QueryRow("SELECT floor, keys FROM record_floor WHERE one = 1", nil, &v.Floor, &v.Keys)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return record.View{}, err
	}
	if fence.Forgot {
		// It is the time of this view, not of the loss. So a lost token, also one from the
		// millisecond of the loss, is below those of the first grant after the fence.
		v.Floor = max(v.Floor, nowMS*1000)
	}
	if v.Size, err = s.Size(); err != nil {
		return v, err
	}
	room, err := s.Room()
	v.Full = !room
	return v, err
}

func recordOf(value []byte, end sql.NullInt64, nowMS int64) record.Record {
	if value == nil { // the driver makes nil of an empty one
		value = []byte{}
	}
	return record.WithTerm(value, end.Int64, nowMS)
}

// Read implements record.Store.
func (s *Store) Read(ctx context.Context, ask record.Ask) (record.View, error) {
	if err := ask.Validate(); err != nil {
		return record.View{}, err
	}
	return sqlitefile.Read(ctx, s.file, func(session *sqlitefile.Session) (record.View, error) {
		return s.view(session, ask, s.now(session, s.file.NowMS()))
	})
}

// List implements record.Store.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]record.Head, error) {
	if err := record.ValidatePage(prefix, after, limit); err != nil {
		return nil, err
	}
	return sqlitefile.Read(ctx, s.file, func(session *sqlitefile.Session) (page []record.Head, err error) {
		nowMS := s.now(session, s.file.NowMS())
		query := "SELECT key, substr(value, 1, ? + 0), end_ms FROM record WHERE key > ? AND key >= ? AND key < ? ORDER BY key LIMIT ? + 0"
		err = session.QueryRows(query, []any{record.MaxHead, after, prefix, record.EndOf(prefix), limit}, func(scan func(...any) error) error {
			var key string
			var value []byte
			var end sql.NullInt64
			err := scan(&key, &value, &end)
			page = append(page, record.HeadOf(key, recordOf(value, end, nowMS)))
			return err
		})
		return page, err
	})
}

// Watch implements record.Store: a file does not tell of its changes.
func (s *Store) Watch(context.Context, string) (<-chan struct{}, error) {
	return nil, errors.ErrUnsupported
}

// Init implements record.Store.
func (s *Store) Init(ctx context.Context) error { return s.file.Init(ctx) }

// Fence implements record.Store.
func (s *Store) Fence(ctx context.Context) error {
	_, err := s.file.Fence(ctx)
	return err
}

// Close implements record.Store. The file stays open.
func (s *Store) Close() error { return nil }
