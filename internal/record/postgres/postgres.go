// Package postgres keeps records in PostgreSQL, for all hosts that use the server.
//
// A rule runs inside the transaction that carries out its writes, so nothing is compared
// and no rule runs twice. Advisory locks on the keys of the Ask come first, in one order,
// so absent keys stay as the rule has seen them.
//
// An area has tables, locks and a channel of its own, which have its name, and a row in the
// table life of package postgresconn.
//
// Later changes delete due records, where no other change uses their keys.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/kazahana/kazahana/internal/conn/connurl"
	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/record"
	"github.com/kazahana/kazahana/internal/record/turns"
)

// The tables of the area {area}. Names sort by their bytes, in a database of any language.
// Indexes are constraints: a statement that makes one would wait for all users of the table.
var tables = []string{
	`CREATE TABLE IF NOT EXISTS {area}_record (
		key    text COLLATE "C" PRIMARY KEY,
		value  bytea   NOT NULL,
		end_ms bigint,
		due_ms bigint,
		mark   bigint  NOT NULL,
		tell   boolean NOT NULL,
		UNIQUE (due_ms, key)
	)`,
	`CREATE TABLE IF NOT EXISTS {area}_floor (one integer PRIMARY KEY CHECK (one = 1), floor bigint NOT NULL)`,
	`INSERT INTO {area}_floor VALUES (1, 0) ON CONFLICT DO NOTHING`,
}

// sweepMax is how many records that are due a change deletes: more than it can make.
const sweepMax = 2 * record.MaxWrites

const (
	// lockOf is the lock of a key in a schema. The second argument is its purpose.
	lockOf    = "hashtextextended(current_schema() || '/{area}/' || key, 3)"
	lockSQL   = "SELECT pg_advisory_xact_lock(h) FROM (SELECT DISTINCT " + lockOf + " h FROM unnest($1::text[]) key ORDER BY h) sorted"
	readSQL   = "SELECT key, value, coalesce(end_ms, 0), mark, tell FROM {area}_record WHERE key = ANY ($1)"
	floorSQL  = "SELECT floor FROM {area}_floor"
	deleteSQL = "DELETE FROM {area}_record WHERE key = ANY ($1)"
	writeSQL  = `INSERT INTO {area}_record (key, value, end_ms, due_ms, mark, tell)
		SELECT * FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::boolean[])
		ON CONFLICT (key) DO UPDATE SET value = excluded.value, end_ms = excluded.end_ms, due_ms = excluded.due_ms, mark = excluded.mark, tell = excluded.tell`
	// sweepSQL deletes due records that are not in use, and raises the floor for these and for
	// the deletions of the change itself.
	sweepSQL = `WITH due AS (
			SELECT key FROM {area}_record WHERE due_ms <= $1 AND pg_try_advisory_xact_lock(` + lockOf + `) ORDER BY due_ms LIMIT $2 FOR UPDATE SKIP LOCKED
		), gone AS (
			DELETE FROM {area}_record r USING due WHERE r.key = due.key RETURNING r.mark
		), marks (mark) AS (
			SELECT greatest($3::bigint, (SELECT max(mark) FROM gone))
		)
		UPDATE {area}_floor SET floor = mark FROM marks WHERE floor < mark`
	// listSQL lists the records from $3 to before $4, and after $2.
	listSQL = `SELECT key, substring(value FOR $1), coalesce(end_ms, 0) FROM {area}_record WHERE key > $2 AND key >= $3 AND key < $4 ORDER BY key LIMIT $5`
)

// statements are those of an area.
type statements struct{ lock, read, floor, delete, write, sweep, list string }

func statementsOf(area record.Area) statements {
	of := func(text string) string { return strings.ReplaceAll(text, "{area}", area.Name) }
	return statements{
		lock: of(lockSQL), read: of(readSQL), floor: of(floorSQL), delete: of(deleteSQL), write: of(writeSQL), sweep: of(sweepSQL), list: of(listSQL),
	}
}

// Store implements record.Store on a client, which it does not own.
type Store struct {
	*postgresconn.Store
	area record.Area
	sql  statements
	// turns: one change of a process waits at the server for each key. A key that many use leaves
	// sessions for others, and a process that is frozen keeps a key for one session's time.
	turns    *turns.Turns[struct{}]
	watchers *watchers
}

// New uses the client; the client's owner closes it after the store. A fence lasts as long as the
// grants; and as long as longestMS once this process has seen it, even if the server has forgotten
// how long the grants of such a process lasted.
func New(client *postgresconn.Client, area record.Area, longestMS int64) *Store {
	kind := postgresconn.Kind{Name: area.Name, LongestMS: longestMS, MaxMS: area.Longest()}
	for _, table := range tables {
		kind.Tables = append(kind.Tables, strings.ReplaceAll(table, "{area}", area.Name))
	}
	s := client.Use(kind)
	remembered := func(struct{}) int { return 0 }
	return &Store{Store: s, area: area, sql: statementsOf(area), turns: turns.New(remembered), watchers: newWatchers(s)}
}

// Close implements record.Store: it ends the watches.
func (s *Store) Close() error {
	s.watchers.close()
	return nil
}

// Fence implements record.Store.
func (s *Store) Fence(ctx context.Context) error {
	_, err := s.Store.Fence(ctx)
	return err
}

// seen are the records as a transaction has read them.
type seen struct {
	view record.View
	ends map[string]int64
	gone map[string]gone // the work of a deletion
}

type gone struct {
	mark int64
	tell bool
}

// reads queues the reads of the ask.
func (sql statements) reads(b *pgx.Batch, ask record.Ask, into *seen) {
	*into = seen{view: record.View{Records: map[string]record.Record{}}, ends: map[string]int64{}, gone: map[string]gone{}}
	if len(ask.Keys) > 0 {
		b.Queue(sql.read, ask.Keys).Query(func(rows pgx.Rows) error {
			var key string
			var value []byte
			var end int64
			var g gone
			_, err := pgx.ForEachRow(rows, []any{&key, &value, &end, &g.mark, &g.tell}, func() error {
				into.view.Records[key] = record.Record{Value: value}
				into.ends[key], into.gone[key] = end, g
				return nil
			})
			return err
		})
	}
	b.Queue(sql.floor).QueryRow(func(row pgx.Row) error { return row.Scan(&into.view.Floor) })
}

// now is the server's clock. It does not go back where the area has terms: an ended term would
// last again, and a term that began then would be shorter.
func (s *Store) now(m postgresconn.Moment) int64 {
	if s.area.FollowsClock {
		return m.NowMS
	}
	return max(m.NowMS, m.LastMS)
}

// at completes the view with the store's own state at the time.
func (s *seen) at(nowMS int64, f postgresconn.Fence) record.View {
	s.view.NowMS, s.view.Life = nowMS, f.Life
	s.view.Fence = record.Fence{Doubt: !f.Trusted, FromMS: f.FromMS, UntilMS: f.UntilMS, Reason: f.Reason}
	if f.Forgot {
		// It is the time of this view, not of the loss. So a lost token, also one from the
		// millisecond of the loss, is below those of the first grant after the fence.
		s.view.Floor = max(s.view.Floor, s.view.NowMS*1000)
	}
	for key, r := range s.view.Records {
		s.view.Records[key] = record.WithTerm(r.Value, s.ends[key], s.view.NowMS)
	}
	return s.view
}

// Change implements record.Store.
func (s *Store) Change(ctx context.Context, ask record.Ask, rule record.Rule) (atMS int64, err error) {
	if err := ask.Validate(); err != nil {
		return 0, err
	}
	held, err := s.turns.Take(ctx, ask.Keys)
	if err != nil {
		return 0, connurl.NotSent(fmt.Errorf("%s: %w", s.Client().Config().Place(), err))
	}
	defer held.Give()
	rule = s.area.Checked(ask, rule)
	var found seen
	err = s.Store.Change(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.lock, ask.Keys)
		s.sql.reads(b, ask, &found)
	}, func(tx *postgresconn.Tx) error {
		atMS = s.now(tx.Moment)
		writes, err := rule(found.at(atMS, tx.Fence))
		if err != nil {
			return err
		}
		if len(writes) == 0 {
			tx.Confirm() // the answer rests on the present record
			return nil
		}
		tx.NowMS = atMS
		found.write(s.sql, tx, writes)
		return nil
	})
	switch {
	case errors.Is(err, postgresconn.ErrUnanswered) && ctx.Err() == nil:
		return 0, fmt.Errorf("%w: %w", record.ErrOutrun, err)
	case errors.Is(err, postgresconn.ErrUnconfirmed):
		return 0, fmt.Errorf("%w: %w", record.ErrUnconfirmed, err)
	case err != nil:
		return 0, err
	}
	return atMS, nil
}

// columns are the writes as arrays, so that one statement carries out all of them.
type columns struct {
	deleted []string
	kept    []string
	values  [][]byte
	ends    []*int64
	dues    []*int64
	marks   []int64
	tells   []bool
}

// write queues the writes, and a sweep.
func (s *seen) write(sql statements, tx *postgresconn.Tx, writes []record.Write) {
	var c columns
	floor := int64(0)
	for _, w := range writes {
		before, there := s.gone[w.Key]
		if w.Tell || w.Value == nil && before.tell {
			tx.Tell(w.Key)
		}
		if w.Value == nil {
			c.deleted = append(c.deleted, w.Key)
			if there {
				floor = max(floor, before.mark, w.Mark)
			}
			continue
		}
		c.add(w, tx.NowMS)
		tx.Lasts(w.GrantMS)
	}
	if len(c.deleted) > 0 {
		tx.Queue(sql.delete, c.deleted)
	}
	if len(c.kept) > 0 {
		tx.Queue(sql.write, c.kept, c.values, c.ends, c.dues, c.marks, c.tells)
	}
	// The floor comes last: others wait for its row.
	tx.Queue(sql.sweep, tx.NowMS, sweepMax, floor)
}

func (c *columns) add(w record.Write, nowMS int64) {
	var end, due *int64
	if w.TermMS > 0 {
		end = new(nowMS + w.TermMS)
	}
	if w.TermMS > 0 || w.KeepMS > 0 {
		due = new(nowMS + w.TermMS + w.KeepMS)
	}
	c.kept, c.values = append(c.kept, w.Key), append(c.values, w.Value)
	c.ends, c.dues = append(c.ends, end), append(c.dues, due)
	c.marks, c.tells = append(c.marks, w.Mark), append(c.tells, w.Tell)
}

// Read implements record.Store.
func (s *Store) Read(ctx context.Context, ask record.Ask) (record.View, error) {
	if err := ask.Validate(); err != nil {
		return record.View{}, err
	}
	var found seen
	m, err := s.Look(ctx, func(b *pgx.Batch) { s.sql.reads(b, ask, &found) })
	if err != nil {
		return record.View{}, err
	}
	return found.at(s.now(m), m.Fence), nil
}

// List implements record.Store.
func (s *Store) List(ctx context.Context, prefix, after string, limit int) ([]record.Head, error) {
	if err := record.ValidatePage(prefix, after, limit); err != nil {
		return nil, err
	}
	type row struct {
		Key   string
		Value []byte
		End   int64
	}
	var found []row
	m, err := s.Look(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.list, record.MaxHead, after, prefix, record.EndOf(prefix), limit).Query(func(rows pgx.Rows) (err error) {
			found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[row])
			return err
		})
	})
	var page []record.Head
	for _, r := range found {
		page = append(page, record.HeadOf(r.Key, record.WithTerm(r.Value, r.End, s.now(m))))
	}
	return page, err
}

// Watch implements record.Store.
func (s *Store) Watch(ctx context.Context, prefix string) (<-chan struct{}, error) {
	if err := record.ValidatePrefix(prefix); err != nil {
		return nil, err
	}
	tokens, err := s.watchers.add(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("changes cannot be watched: %w", err)
	}
	return tokens, nil
}
