package sqlite

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// historyKept is how long a grant is remembered after its end, beyond the
// record that every slot keeps for ever.
const historyKept = 30 * 24 * time.Hour

// transaction is a write to the lease file under way. Operations are methods of
// it.
type transaction struct {
	*sqlitefile.Tx
	random func(n int64) int64
}

// reader is the pool as the transaction sees it, with its line.
func (t *transaction) reader(name string) *reader {
	return &reader{Session: t.Session, name: name, build: t.buildLine}
}

// moment is when the transaction runs. A new ring begins at a random machine ID:
// another host may have a file of its own, and a file that was lost may have been
// followed by this one.
func (t *transaction) moment() pool.Moment {
	return pool.Moment{NowMS: t.NowMS, Fence: fencedError(t.Fence(), t.NowMS), Random: t.random}
}

// explained marks an error by which the file contradicts itself: nothing of the
// transaction is kept.
func explained(err error) error {
	if errors.Is(err, pool.ErrInconsistent) {
		return fmt.Errorf("%w: %w", sqlitefile.ErrInconsistent, err)
	}
	return err
}

// write carries out a change.
func (t *transaction) write(r *reader, c pool.Change) error {
	if c.Create != nil {
		inserted, err := t.Exec("INSERT INTO pool (name, epoch_ms, bit_ts, levels) VALUES (?, ?, ?, 0)", r.name, c.Create.EpochMS, c.Create.BitTS)
		if err != nil {
			return err
		}
		if r.id, err = inserted.LastInsertId(); err != nil {
			return err
		}
	}
	if c.Levels != nil {
		levels := uint64(0)
		for _, level := range c.Levels {
			levels |= 1 << level
		}
		if _, err := t.Exec("UPDATE pool SET levels = ? WHERE id = ?", int64(levels), r.id); err != nil {
			return err
		}
	}
	for _, g := range c.Grants {
		if err := t.grant(r, g); err != nil {
			return err
		}
	}
	for _, e := range c.Ended {
		if err := t.end(r, e); err != nil {
			return err
		}
	}
	if c.Cursor != nil {
		ring := c.Cursor.Ring
		if _, err := t.Exec("INSERT INTO cursor (pool, bit_seq, low, high, machine_id) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET machine_id = ?5",
			r.id, ring.BitSeq, ring.IDs.Low, ring.IDs.End-1, c.Cursor.MachineID); err != nil {
			return err
		}
	}
	if err := t.paint(r.id, c.Erase, c.Paint); err != nil {
		return err
	}
	// Twice as many as come: a backlog shrinks, and no acquire is burdened.
	return t.forget(2 * len(c.Grants))
}

// grant writes one grant.
func (t *transaction) grant(r *reader, g pool.Record) error {
	meta, err := json.Marshal(g.Meta)
	if err != nil {
		return err
	}
	key, l := g.Key(), g.Lease
	t.Grants(g.End)
	inserted, err := t.Exec(`INSERT INTO history (pool, start, bit_seq, created, expired, until, released, service, meta, request)
		VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?)`,
		r.id, key.Start, key.BitSeq, l.Created, l.Expired, g.End, g.Service, string(meta), g.Request)
	if err != nil {
		return err
	}
	historyID, err := inserted.LastInsertId()
	if err != nil {
		return err
	}
	_, err = t.Exec(`INSERT INTO slot (pool, start, bit_seq, created, expired, until, released, secret, service, meta, request, history_id)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, ?8, ?9, ?10, ?11)
		ON CONFLICT DO UPDATE SET created = ?4, expired = ?5, until = ?6, released = 0, secret = ?7, service = ?8,
			meta = ?9, request = ?10, history_id = ?11`,
		r.id, key.Start, key.BitSeq, l.Created, l.Expired, g.End, l.Secret, g.Service, string(meta), g.Request, historyID)
	return err
}

// end writes the new times of a grant. The history may have lost the grant, after a
// clock that was far ahead.
func (t *transaction) end(r *reader, e pool.Record) error {
	if !e.Released {
		t.Extends(e.End)
	}
	key := e.Key()
	if _, err := t.Exec("UPDATE slot SET expired = ?, until = ?, released = ? WHERE pool = ? AND start = ? AND bit_seq = ?",
		e.Lease.Expired, e.End, e.Released, r.id, key.Start, key.BitSeq); err != nil {
		return err
	}
	_, err := t.Exec("UPDATE history SET expired = ?, until = ?, released = ? WHERE id = ? AND pool = ? AND start = ? AND bit_seq = ?",
		e.Lease.Expired, e.End, e.Released, e.Number, r.id, key.Start, key.BitSeq)
	return err
}

// paint changes the pool's line.
func (t *transaction) paint(poolID int64, erase []snowflake.Slot, paint []pool.Segment) error {
	for _, span := range erase {
		if _, err := t.Exec("DELETE FROM segment WHERE pool = ? AND low >= ? AND low < ?", poolID, span.Start, span.End); err != nil {
			return err
		}
	}
	for _, s := range paint {
		if _, err := t.Exec(`INSERT INTO segment (pool, low, high, free_at, bit_seq) VALUES (?1, ?2, ?3, ?4, ?5)
			ON CONFLICT DO UPDATE SET high = ?3, free_at = ?4, bit_seq = ?5`, poolID, s.Low, s.End, s.FreeAt, s.BitSeq); err != nil {
			return err
		}
	}
	return nil
}

// buildLine makes the pool's line from its records, where the file has none: it may
// have held parts of two copies.
func (t *transaction) buildLine(r *reader) error {
	var first int64
	err := t.QueryRow("SELECT low FROM segment WHERE pool = ? LIMIT 1", []any{r.id}, &first)
	if !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	marks, err := r.marks()
	if err != nil {
		return err
	}
	t.Keep = t.Keep || len(marks) > 0
	return t.paint(r.id, nil, pool.NewLine(pool.EmptyLine(r.known.Timeline), marks).Segments())
}

// forget removes at most n grants from the history that ended long ago. A clock
// that jumps far ahead makes it remove some too early, n for each grant; the
// records of slots are not touched.
func (t *transaction) forget(n int) error {
	if n == 0 {
		return nil
	}
	cutoff := t.NowMS - historyKept.Milliseconds()
	var oldest int64
	err := t.QueryRow("SELECT until FROM history ORDER BY until LIMIT 1", nil, &oldest)
	if errors.Is(err, sql.ErrNoRows) || err == nil && oldest >= cutoff {
		return nil
	}
	if err == nil {
		// The sum keeps SQLite from preparing the statement anew for each limit.
		_, err = t.Exec("DELETE FROM history WHERE id IN (SELECT id FROM history WHERE until < ? ORDER BY until LIMIT ? + 0)", cutoff, n)
	}
	return err
}

// count adds to the pool's counters. What leaves nothing else in the file is not
// counted.
func (t *transaction) count(name string, names ...string) error {
	var n [6]int
	for _, counted := range names {
		for i, column := range counterColumns {
			if counted == column {
				n[i]++
			}
		}
	}
	_, err := t.Exec(`INSERT INTO counter (pool, clients, granted, full, extended, extend_not_owner, extend_too_late)
		SELECT id, ?, ?, ?, ?, ?, ? FROM pool WHERE name = ? ON CONFLICT DO UPDATE SET
			clients = clients + excluded.clients, granted = granted + excluded.granted, full = full + excluded.full,
			extended = extended + excluded.extended, extend_not_owner = extend_not_owner + excluded.extend_not_owner,
			extend_too_late = extend_too_late + excluded.extend_too_late`,
		n[0], n[1], n[2], n[3], n[4], n[5], name)
	return err
}

// counterColumns are the counters that table counter has, in the order of its
// columns. The others are sums of them.
var counterColumns = [6]string{
	provider.CountClients, provider.CountGranted, provider.CountFull,
	provider.CountExtended, provider.CountNotOwner, provider.CountExtendEnded,
}

func counters(s *sqlitefile.Session, name string) (map[string]int64, error) {
	var n [6]int64
	err := s.QueryRow(`SELECT c.clients, c.granted, c.full, c.extended, c.extend_not_owner, c.extend_too_late
		FROM pool p JOIN counter c ON c.pool = p.id WHERE p.name = ?`, []any{name},
		&n[0], &n[1], &n[2], &n[3], &n[4], &n[5])
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, err
	}
	all := provider.NoCounts()
	for i, column := range counterColumns {
		all[column] = n[i]
	}
	all[provider.CountAcquires] = all[provider.CountGranted] + all[provider.CountFull]
	all[provider.CountExtends] = all[provider.CountExtended] + all[provider.CountNotOwner] + all[provider.CountExtendEnded]
	return all, nil
}
