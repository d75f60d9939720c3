package postgresconn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/kazahana/kazahana/internal/conn/connurl"
)

// Kind describes a kind of store.
type Kind struct {
	Name   string   // in table life, and of the commands that fence the store and end its fence
	Tables []string // the statements that make its tables; they change nothing at the second time
	// LongestMS is how long the grants of this process last at most, under any Tx.Lasts, and
	// MaxMS is taken for the longest where nothing is known.
	LongestMS, MaxMS int64
}

// Store is tables in the schema that share a life. Its methods may be called by many
// goroutines.
type Store struct {
	client *Client
	kind   Kind
	clock  string

	mu   sync.Mutex // guards seen
	seen memory
}

// Use returns a store. Its tables are made when it finds them missing.
func (c *Client) Use(kind Kind) *Store {
	clock := "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
	if c.cfg.Clock != "" {
		clock = c.cfg.Clock
	}
	return &Store{client: c, kind: kind, clock: clock, seen: memory{ends: map[string]int64{}}}
}

// Client is the client that the store uses.
func (s *Store) Client() *Client { return s.client }

// Moment is the state of a store at the beginning of a transaction.
type Moment struct {
	NowMS  int64 // by the server's clock
	LastMS int64 // of the latest change, or later
	Fence  Fence
}

// Tx is a transaction that has read the rows it asked for. Its commit carries out the queued
// statements.
type Tx struct {
	Moment
	*pgx.Batch
	life   life
	raised int64
	tells  []string
}

// Confirm has the commit wait for a standby as if something was written: it may have read a
// change with a commit that was not confirmed.
func (t *Tx) Confirm() { t.Queue("SELECT pg_current_xact_id()") }

// Lasts says that the transaction grants something that lasts so long.
func (t *Tx) Lasts(ms int64) { t.raised = max(t.raised, ms) }

// Tell notifies the listeners after the commit.
func (t *Tx) Tell(payload string) { t.tells = append(t.tells, payload) }

// tries bounds how often a transaction begins anew because the store's row changed.
const tries = 8

// Change sends what ask queues, which takes locks and reads, then what decide queues, and commits.
// Where decide queues nothing, or returns an error, nothing is changed. ask and decide may be called
// several times. An error wraps connurl.ErrNotSent if nothing was changed for certain.
func (s *Store) Change(ctx context.Context, ask func(*pgx.Batch), decide func(*Tx) error) error {
	_, err := s.begin(ctx, "BEGIN", ask, func(conn *pgx.Conn, l life) error {
		tx := &Tx{Moment: l.moment(), Batch: &pgx.Batch{}, life: l}
		err := decide(tx)
		if err == nil && tx.Len() > 0 && tx.raised <= l.longestMS {
			return s.commit(ctx, conn, tx)
		}
		_, _ = conn.Exec(ctx, "ROLLBACK") // a session where this fails is closed, and gives its locks back
		if err == nil && tx.Len() > 0 {
			// The store knows how long the grant lasts before it is made.
			return &mendError{errBehind, func(ctx context.Context) error { return s.raise(ctx, tx.raised) }}
		}
		return err
	})
	return err
}

// Look sends what ask queues, and shows it one state of the store. A store without
// tables is empty and has no life; Look makes them only where this process knows that
// they were there.
func (s *Store) Look(ctx context.Context, ask func(*pgx.Batch)) (Moment, error) {
	return s.begin(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", ask, nil)
}

// begin begins a transaction, and makes tables and fences first where they are due.
// Without do, it ends the transaction too.
func (s *Store) begin(ctx context.Context, begin string, ask func(*pgx.Batch), do func(*pgx.Conn, life) error) (Moment, error) {
	for range tries {
		l, err := s.try(ctx, begin, ask, do)
		var due *mendError
		if !errors.As(err, &due) {
			return l.moment(), err
		}
		if err := due.mend(ctx); err != nil {
			return Moment{}, connurl.NotSent(err)
		}
	}
	return Moment{}, connurl.NotSent(fmt.Errorf("%s: others change the store's row all the time", s.client.cfg.Place()))
}

// mendError: something must be put right before the transaction can begin.
type mendError struct {
	error
	mend func(context.Context) error
}

func (s *Store) try(ctx context.Context, begin string, ask func(*pgx.Batch), do func(*pgx.Conn, life) error) (l life, err error) {
	held, err := s.client.acquire(ctx)
	if err != nil {
		return l, err
	}
	defer held.Release() // a session in a transaction is closed
	conn, before := held.Conn(), s.remembered()
	b := &pgx.Batch{}
	b.Queue(begin)
	if ask != nil {
		ask(b)
	}
	s.lifeQuery(b, "", &l)
	if do != nil { // the process remembers its latest change
		b.Queue("SELECT pg_current_xact_id()::text::bigint").QueryRow(func(row pgx.Row) error { return row.Scan(&l.xid) })
	} else {
		b.Queue("COMMIT")
	}
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		if hasCode(err, undefinedTable) || errors.Is(err, pgx.ErrNoRows) {
			if do == nil && s.latest().Life == "" {
				return s.empty(ctx, conn)
			}
			return l, &mendError{err, s.setup}
		}
		return l, connurl.NotSent(s.client.cfg.explain(err))
	}
	if reason := before.doubt(l); reason != "" {
		if since, _ := conn.PgConn().CustomData()[began].(time.Time); since.Before(before.since) {
			// The session may lead to an old primary. A new one shows whether all do.
			return l, &mendError{errBehind, func(context.Context) error { s.client.pool.Reset(); return nil }}
		}
		return l, &mendError{errBehind, func(ctx context.Context) error { return s.beginFence(ctx, l, reason) }}
	}
	s.note(l)
	// A fence lasts longer as soon as this process has found it: others grant after it.
	longest := max(s.kind.LongestMS, before.longestMS)
	if longest > l.longestMS && (do != nil || l.Holds(l.nowMS)) {
		return l, &mendError{errBehind, func(ctx context.Context) error { return s.raise(ctx, longest) }}
	}
	if do == nil {
		return l, nil
	}
	return l, do(conn, l)
}

// empty is a store without tables, of which this process does not know that it had any.
func (s *Store) empty(ctx context.Context, conn *pgx.Conn) (life, error) {
	l := life{Fence: Fence{Trusted: true}}
	b := &pgx.Batch{}
	b.Queue("ROLLBACK")
	b.Queue("SELECT " + s.clock).QueryRow(func(row pgx.Row) error { return row.Scan(&l.nowMS) })
	err := conn.SendBatch(ctx, b).Close()
	if err == nil {
		err = s.checkMissing(ctx, conn)
	}
	return l, connurl.NotSent(s.client.cfg.explain(err))
}

// raiseSQL: a fence lasts as long as the longest that is known, except where the URL
// says how long one after a failover lasts.
const raiseSQL = `UPDATE life SET longest_ms = greatest(longest_ms, $2),
	until_ms = CASE WHEN until_ms = 0 OR bounded AND $3 THEN until_ms ELSE greatest(until_ms, from_ms + $2) END WHERE kind = $1`

// raise notes the longest that anything lasts, before it is granted.
func (s *Store) raise(ctx context.Context, ms int64) error {
	return s.alter(ctx, func(life) (string, []any) { return raiseSQL, []any{ms, s.client.cfg.FailoverFenceSet} })
}

// commit sends the writes, the commit and the notifications.
func (s *Store) commit(ctx context.Context, conn *pgx.Conn, tx *Tx) error {
	tx.Queue("SELECT setval('last_ms', greatest($1, (SELECT last_value FROM last_ms)))", tx.NowMS)
	delete(conn.PgConn().CustomData(), warning)
	committed := false
	tx.Queue("COMMIT").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() != "COMMIT" {
			return fmt.Errorf("the server answered the commit with %s", tag)
		}
		if w, ok := conn.PgConn().CustomData()[warning]; ok {
			return fmt.Errorf("%w: %v", ErrUnconfirmed, w)
		}
		committed = true
		s.acknowledged(tx.life)
		return nil
	})
	if len(tx.tells) > 0 {
		tx.Queue("BEGIN")
		tx.Queue("SET LOCAL synchronous_commit TO off")
		tx.Queue("SELECT pg_notify($1, payload) FROM unnest($2::text[]) payload", s.Channel(), tx.tells)
		tx.Queue("COMMIT")
	}
	err := conn.SendBatch(ctx, tx.Batch).Close()
	switch explained := s.client.cfg.explain(err); {
	case committed:
		return nil // what listeners miss, they find when they look by themselves
	case conn.IsClosed():
		return fmt.Errorf("%w: %w", ErrUnanswered, explained)
	default:
		return explained
	}
}

// Channel is the name of the channel of notifications.
func (s *Store) Channel() string { return s.client.cfg.Schema + "_" + s.kind.Name }
