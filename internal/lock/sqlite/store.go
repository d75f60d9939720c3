// Package sqlite keeps locks in an SQLite file, for the processes of one host or
// behind a lease server. What it has answered is on the disk. Its clock is the
// host's, or whatever clock the file was opened with.
//
// A file that was put back from a backup is fenced (package sqlitefile): no lease
// is granted until every lease that may be forgotten has ended, and the next token
// of each key is greater than the time in microseconds, which no key's token
// overtakes. What the file knows goes on meanwhile, since it is its owner's.
package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/lock"
)

const (
	// sweep is how many idle keys a write deletes: more than it can add.
	sweep = 2
	// sweepPause is how long nothing is looked for after nothing was found.
	sweepPause = time.Second
	// parsed is how many states are kept as they were read last: most of what a
	// request costs beside the disk is reading the receipts of a busy key.
	parsed = 1000
	// stretch is how many keys a List looks at before others have their turn.
	stretch = 1000
)

// Tables are the statements that make this package's part of a store file.
var Tables = []string{
	// A key's lock.State in JSON; ends is its ExpiresMS.
	`CREATE TABLE IF NOT EXISTS locks (
		tenant TEXT    NOT NULL,
		key    TEXT    NOT NULL,
		state  TEXT    NOT NULL,
		ends   INTEGER NOT NULL,
		PRIMARY KEY (tenant, key)
	) STRICT, WITHOUT ROWID`,
	`CREATE INDEX IF NOT EXISTS locks_by_end ON locks (ends)`,
	// The highest token among the keys that were deleted; no row before the first.
	`CREATE TABLE IF NOT EXISTS lock_floor (
		only  INTEGER PRIMARY KEY CHECK (only = 1),
		token INTEGER NOT NULL
	) STRICT`,
}

// Store is locks in a store file, which it does not own.
type Store struct {
	file *sqlitefile.File

	// Used by writes alone, which come one after the other.
	states      map[string]lock.State // by the text that they were read from, at most parsed
	nothingIdle int64                 // Unix ms: when there was nothing to delete; 0: not so
}

var _ lock.Store = (*Store)(nil)

// New uses a file that was opened with Tables. Whoever opened it closes it.
func New(file *sqlitefile.File) *Store { return &Store{file: file, states: map[string]lock.State{}} }

// Close implements lock.Store. The file stays open.
func (s *Store) Close() error { return nil }

// Do implements lock.Store.
func (s *Store) Do(ctx context.Context, r lock.Request) (lock.Lease, error) {
	if err := r.Validate(); err != nil {
		return lock.Lease{}, err
	}
	var l lock.Lease // no named result: who gives up returns while this is still written
	err := s.file.Write(ctx, func(tx *sqlitefile.Tx) (err error) {
		l, err = s.do(tx, r)
		return err
	}, nil)
	if err != nil {
		return lock.Lease{}, err
	}
	return l, nil
}

func (s *Store) do(tx *sqlitefile.Tx, r lock.Request) (lock.Lease, error) {
	known, err := knownOf(tx)
	if err != nil {
		return lock.Lease{}, err
	}
	before, err := find(tx.Session, r.Tenant, r.Key)
	if err == nil {
		known.State, err = s.parse(r.Key, before)
	}
	if err != nil && !errors.Is(err, lock.ErrNotFound) {
		return lock.Lease{}, err
	}
	state, l, err := lock.Apply(known, r, tx.NowMS)
	if err != nil || l.Repeated {
		return l, err
	}
	text, err := json.Marshal(state)
	if err != nil {
		return lock.Lease{}, err
	}
	if _, err := tx.Exec(`INSERT INTO locks (tenant, key, state, ends) VALUES (?, ?, ?, ?)
		ON CONFLICT (tenant, key) DO UPDATE SET state = excluded.state, ends = excluded.ends`,
		r.Tenant, r.Key, string(text), state.ExpiresMS); err != nil {
		return lock.Lease{}, err
	}
	if l.State == lock.Active {
		tx.Grants(state.ExpiresMS)
	}
	delete(s.states, before)
	s.remember(string(text), state)
	return l, s.sweep(tx, known.Floor)
}

// knownOf is what the store knows of itself. A file that has forgotten nothing so
// far has no incarnation: its tokens are 1, 2, 3.
func knownOf(tx *sqlitefile.Tx) (known lock.Known, err error) {
	fence := tx.Fence()
	known.FencedUntilMS, known.FenceReason = fence.UntilMS, fence.Reason
	if fence.Forgot {
		known.Incarnation = fence.Life
	}
	err = tx.QueryRow(`SELECT coalesce(max(token), 0) FROM lock_floor`, nil, &known.Floor)
	return known, err
}

// parse is parse for a write. That a state belongs to its text is true whatever
// becomes of the transaction, and whoever else writes to the file.
func (s *Store) parse(key, text string) (lock.State, error) {
	if state, ok := s.states[text]; ok {
		return state, nil
	}
	state, err := parse(key, text)
	if err == nil {
		s.remember(text, state)
	}
	return state, err
}

func (s *Store) remember(text string, state lock.State) {
	for other := range s.states {
		if len(s.states) < parsed {
			break
		}
		delete(s.states, other)
	}
	s.states[text] = state
}

// find is the text of the key's state.
func find(s *sqlitefile.Session, tenant, key string) (text string, err error) {
	err = s.QueryRow(`SELECT state FROM locks WHERE tenant = ? AND key = ?`, []any{tenant, key}, &text)
	if errors.Is(err, sql.ErrNoRows) {
		return "", lock.ErrNotFound
	}
	return text, err
}

func parse(key, text string) (state lock.State, err error) {
	if err := json.Unmarshal([]byte(text), &state); err != nil {
		return state, fmt.Errorf("%w: the state of lock %q: %w", sqlitefile.ErrInconsistent, key, err)
	}
	return state, nil
}

// sweep deletes idle keys, and looks for them now and then where there are none.
func (s *Store) sweep(tx *sqlitefile.Tx, floor int64) error {
	if since := tx.NowMS - s.nothingIdle; since >= 0 && since < sweepPause.Milliseconds() {
		return nil
	}
	s.nothingIdle = 0
	deleted, err := deleteIdle(tx, floor)
	if err == nil && deleted == 0 {
		s.nothingIdle = tx.NowMS
	}
	return err
}

// deleteIdle deletes a few of the keys that have been idle for long. The floor
// rises to their tokens first, in the same transaction: none is granted again.
func deleteIdle(tx *sqlitefile.Tx, floor int64) (deleted int, err error) {
	type name struct{ tenant, key string }
	var idle []name
	highest := floor
	err = tx.QueryRows(`SELECT tenant, key, state FROM locks WHERE ends <= ? ORDER BY ends LIMIT ?`,
		[]any{tx.NowMS - lock.KeepIdle.Milliseconds(), sweep}, func(scan func(...any) error) error {
			var n name
			var text string
			if err := scan(&n.tenant, &n.key, &text); err != nil {
				return err
			}
			state, err := parse(n.key, text)
			if err == nil && state.Idle(tx.NowMS) {
				idle, highest = append(idle, n), max(highest, state.Token)
			}
			return err
		})
	if err != nil || len(idle) == 0 {
		return 0, err
	}
	if _, err := tx.Exec(`INSERT INTO lock_floor VALUES (1, ?) ON CONFLICT DO UPDATE SET token = excluded.token`, highest); err != nil {
		return 0, err
	}
	for _, n := range idle {
		if _, err := tx.Exec(`DELETE FROM locks WHERE tenant = ? AND key = ?`, n.tenant, n.key); err != nil {
			return 0, err
		}
	}
	return len(idle), nil
}

// Get implements lock.Store.
func (s *Store) Get(ctx context.Context, tenant, key string) (lock.Lease, error) {
	if err := lock.CheckKey(tenant, key); err != nil {
		return lock.Lease{}, err
	}
	return sqlitefile.Read(ctx, s.file, func(session *sqlitefile.Session) (lock.Lease, error) {
		text, err := find(session, tenant, key)
		if err != nil {
			return lock.Lease{}, err
		}
		state, err := parse(key, text)
		if err != nil {
			return lock.Lease{}, err
		}
		return state.Lease(tenant, key, s.file.NowMS()), nil
	})
}

// List implements lock.Store. It looks at a stretch of keys at a time, so that
// requests are not held up.
func (s *Store) List(ctx context.Context, tenant, after string, limit int) ([]lock.Lease, error) {
	if err := lock.CheckPage(tenant, after, limit); err != nil {
		return nil, err
	}
	var page []lock.Lease
	for {
		part, err := sqlitefile.Read(ctx, s.file, func(session *sqlitefile.Session) (stretchOf, error) {
			return look(session, tenant, after, s.file.NowMS())
		})
		if err != nil {
			return nil, err
		}
		page = append(page, part.live...)
		if !part.more || len(page) >= limit {
			return page[:min(limit, len(page))], nil
		}
		after = part.last
	}
}

// stretchOf is what a stretch of keys holds.
type stretchOf struct {
	live []lock.Lease
	last string // the last key looked at
	more bool   // there may be others behind it
}

func look(session *sqlitefile.Session, tenant, after string, nowMS int64) (part stretchOf, err error) {
	seen := 0
	err = session.QueryRows(`SELECT key, state FROM locks WHERE tenant = ? AND key > ? ORDER BY key LIMIT ?`,
		[]any{tenant, after, stretch}, func(scan func(...any) error) error {
			var text string
			if err := scan(&part.last, &text); err != nil {
				return err
			}
			seen++
			state, err := parse(part.last, text)
			if l := state.Lease(tenant, part.last, nowMS); l.State == lock.Active {
				part.live = append(part.live, l)
			}
			return err
		})
	part.more = seen == stretch
	return part, err
}
