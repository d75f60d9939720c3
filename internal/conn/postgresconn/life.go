package postgresconn

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// lifeTable has a row for each kind of store in the schema.
const lifeTable = `CREATE TABLE IF NOT EXISTS life (
	kind       text PRIMARY KEY,
	format     int NOT NULL DEFAULT ` + format + `,
	id         text NOT NULL,
	fences     bigint NOT NULL,
	server     text NOT NULL,
	longest_ms bigint NOT NULL,
	trusted    boolean NOT NULL,
	from_ms    bigint NOT NULL,
	until_ms   bigint NOT NULL,
	reason     text NOT NULL,
	bounded    boolean NOT NULL DEFAULT false
)`

// format is the format of all tables of a kind. In 1, leases had a table for each thing.
const format = "2"

// lastTable is the latest time of a change: a sequence, since its changes do not wait.
const lastTable = `CREATE SEQUENCE IF NOT EXISTS last_ms MINVALUE 0 START 0`

// Fence says whether a store may have forgotten something.
type Fence struct {
	// Life names the store's present life; another one begins with each fence. It is ""
	// where there are no tables.
	Life string
	// Trusted: nothing is missing, because there was no loss or because an operator
	// said so.
	Trusted bool
	// Forgot: another life went before. It stays so.
	Forgot bool
	// FromMS is when the fence began, and UntilMS when grants begin again, in Unix ms;
	// 0 where there is none.
	FromMS, UntilMS int64
	Reason          string // for people
}

// Holds reports whether nothing may be granted now.
func (f Fence) Holds(nowMS int64) bool { return nowMS < f.UntilMS }

// life is a row, and the session's words beside it.
type life struct {
	Fence
	fences    int64  // how many there were
	server    string // the server of the row's life
	longestMS int64  // the longest that anything lasts that was ever granted

	session string // the life of the session's server
	logEnd  int64  // of the server's log on its disk, in bytes
	nowMS   int64
	lastMS  int64 // of the latest change
	nextXID int64 // above those of all transactions that have ended
	xid     int64 // of this transaction, if it may change something
}

func (l life) moment() Moment { return Moment{NowMS: l.nowMS, LastMS: l.lastMS, Fence: l.Fence} }

// Why a store is fenced. reasonEnd follows each. AREA stands for the name of the store's kind.
const (
	reasonServer = "the server is another one than before: a standby was promoted, or a backup was restored"
	reasonLog    = "the server's log ends earlier than it did: a backup was put back, or the server lost data"
	reasonLost   = "the server lacks what it had before: a backup was restored, an older server came back, or the tables were made anew"
	reasonGone   = "the tables were gone"
	reasonByHand = "an operator said that the database was put back (kazahanad AREA fence)"

	reasonEnd = "; what was granted since may be missing. Where nothing is missing, say so with: kazahanad AREA init"
)

// why is the reason with what follows it.
func (k Kind) why(reason string) string {
	return strings.ReplaceAll(reason+reasonEnd, "AREA", k.Name)
}

// memory is this process's view of a store: the latest, and the greatest times.
type memory struct {
	life
	since   time.Time        // when the present life was seen first
	changed int64            // the greatest xid of an own change in this life that was acknowledged
	ends    map[string]int64 // of the log, of each life of the server
}

// lifeQuery reads the moment and the row. It comes after the locks.
func (s *Store) lifeQuery(b *pgx.Batch, forUpdate string, into *life) {
	b.Queue(`SELECT `+s.clock+`, (SELECT last_value FROM last_ms), current_setting('kazahana.life', true),
		current_setting('synchronous_commit'), (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint,
		pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
		id, format::text, fences, server, longest_ms, trusted, from_ms, until_ms, reason FROM life WHERE kind = $1`+forUpdate, s.kind.Name).QueryRow(func(row pgx.Row) error {
		var session *string
		var commit, written string
		if err := row.Scan(&into.nowMS, &into.lastMS, &session, &commit, &into.logEnd, &into.nextXID, &into.Life, &written, &into.fences, &into.server, &into.longestMS,
			&into.Trusted, &into.FromMS, &into.UntilMS, &into.Reason); err != nil {
			return err
		}
		if session == nil || *session == "" || commit != s.client.cfg.SynchronousCommit {
			return fmt.Errorf("%w: the session is not the one that was set up (synchronous_commit is %s, not %s): a pool of connections in between "+
				"(PgBouncer) needs pool_mode=session", ErrServer, commit, s.client.cfg.SynchronousCommit)
		}
		if err := checkFormat(written); err != nil {
			return err
		}
		into.session, into.Forgot = *session, into.fences > 1
		return nil
	})
}

// checkFormat refuses the tables of another version.
func checkFormat(written string) error {
	if written == format {
		return nil
	}
	return fmt.Errorf("%w: its tables have the format %s, and this program knows %s: use the version of kazahanad that made them, or another schema=", ErrServer, written, format)
}

// checkMissing refuses a schema that lacks tables of this version because another version has made its
// own there.
func (s *Store) checkMissing(ctx context.Context, conn *pgx.Conn) error {
	var there bool
	if err := conn.QueryRow(ctx, "SELECT to_regclass('life') IS NOT NULL").Scan(&there); err != nil || !there {
		return err
	}
	written := format
	err := conn.QueryRow(ctx, "SELECT format::text FROM life WHERE kind = $1", s.kind.Name).Scan(&written)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	return checkFormat(written)
}

// remembered returns the memory of this process from before a transaction began. It may learn
// meanwhile of newer rows than the transaction reads.
func (s *Store) remembered() memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.seen
	m.ends = maps.Clone(m.ends)
	return m
}

// doubt says why the store may have forgotten something, "" where it has not. A certain loss
// comes before one that a promotion may have caused.
func (m memory) doubt(l life) string {
	known := l.fences == m.fences // where there are more, another process has begun a fence
	switch {
	case known && l.session == m.session && l.logEnd < m.ends[l.session]:
		return reasonLog
	case l.fences < m.fences, known && m.Life != "" && l.Life != m.Life:
		return reasonLost
	case known && m.changed >= l.nextXID && m.changed > 0 && sameSystem(m.session, l.session):
		return reasonLost
	case l.server != l.session:
		return reasonServer
	}
	return ""
}

// note remembers what a transaction has seen.
func (s *Store) note(l life) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.fences < s.seen.fences {
		return // another transaction has seen more
	}
	if l.fences > s.seen.fences {
		s.seen.changed, s.seen.ends[l.session] = 0, 0 // earlier losses are settled
		s.seen.since = time.Now()
	}
	s.seen.ends[l.session] = max(s.seen.ends[l.session], l.logEnd)
	l.lastMS, l.longestMS = max(l.nowMS, l.lastMS, s.seen.lastMS), max(l.longestMS, s.seen.longestMS)
	s.seen.life = l
}

// acknowledged remembers a change of this process, unless it was of a life that is over.
func (s *Store) acknowledged(l life) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.fences == s.seen.fences {
		s.seen.changed = max(s.seen.changed, l.xid)
	}
}

// setup makes the tables. A store that this process knows has forgotten all.
func (s *Store) setup(ctx context.Context) error {
	fence := Fence{Life: newLife(), Trusted: s.latest().Life == ""}
	if !fence.Trusted {
		fence.Reason = s.kind.why(reasonGone)
	}
	return s.inSession(ctx, func(conn *pgx.Conn) error {
		b := &pgx.Batch{}
		b.Queue("BEGIN")
		b.Queue("SELECT pg_advisory_xact_lock(hashtextextended($1, 1))", s.client.cfg.Schema)
		if err := conn.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		if err := s.checkMissing(ctx, conn); err != nil {
			return err
		}
		// Of several statements in one text, each is understood when the one before is done.
		statements := append([]string{lifeTable, lastTable}, s.kind.Tables...)
		var there bool
		if err := conn.QueryRow(ctx, "SELECT to_regnamespace($1) IS NOT NULL", pgx.Identifier{s.client.cfg.Schema}.Sanitize()).Scan(&there); err != nil {
			return err
		}
		if !there {
			statements = append([]string{"CREATE SCHEMA " + pgx.Identifier{s.client.cfg.Schema}.Sanitize()}, statements...)
		}
		if _, err := conn.Exec(ctx, strings.Join(statements, ";\n"), pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		b = &pgx.Batch{}
		b.Queue(`INSERT INTO life (kind, id, fences, server, longest_ms, trusted, from_ms, until_ms, reason)
			SELECT $1, $2, $8::bigint, current_setting('kazahana.life'), $3::bigint, $4::boolean, CASE WHEN $4 THEN 0 ELSE now.ms END, CASE WHEN $4 THEN 0 ELSE now.ms + $5::bigint END, $6
			FROM (SELECT greatest(`+s.clock+`, $7::bigint)) now (ms) ON CONFLICT DO NOTHING`,
			s.kind.Name, fence.Life, s.kind.LongestMS, fence.Trusted, s.longest(life{}), fence.Reason, s.latest().lastMS, s.latest().fences+1)
		b.Queue("COMMIT")
		return conn.SendBatch(ctx, b).Close()
	})
}

// latest returns this process's latest view of the store.
func (s *Store) latest() life {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen.life
}

// longest is how long a fence lasts: as long as anything that may be missing.
func (s *Store) longest(l life) int64 {
	if longest := max(l.longestMS, s.latest().longestMS, s.kind.LongestMS); longest > 0 {
		return longest
	}
	return s.kind.MaxMS
}

// beginFence begins a new life, unless another process has since the row was read.
func (s *Store) beginFence(ctx context.Context, before life, reason string) error {
	return s.alter(ctx, func(l life) (string, []any) {
		if l.Life != before.Life {
			return "", nil
		}
		// The URL's word about a failover holds for a standby of the same server.
		bounded := s.client.cfg.FailoverFenceSet && reason == reasonServer && sameSystem(l.server, l.session)
		lasts := s.longest(l)
		if bounded {
			lasts = s.client.cfg.FailoverFence.Milliseconds()
		}
		if bounded && lasts == 0 {
			return "UPDATE life SET server = $2 WHERE kind = $1", []any{l.session}
		}
		from := max(l.nowMS, l.lastMS, s.latest().lastMS)
		return `UPDATE life SET id = $2, fences = greatest(fences, $7) + 1, server = $3, trusted = false, from_ms = $4, until_ms = greatest(until_ms, $5), reason = $6,
				bounded = $8 AND (bounded OR until_ms <= $4) WHERE kind = $1`,
			[]any{newLife(), l.session, from, from + lasts, s.kind.why(reason), s.latest().fences, bounded}
	})
}

// sameSystem reports whether two lives are of servers that began as one.
func sameSystem(a, b string) bool {
	a, _, _ = strings.Cut(a, "/")
	b, _, _ = strings.Cut(b, "/")
	return a == b
}

func newLife() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// alter changes the row, with its lock.
func (s *Store) alter(ctx context.Context, change func(life) (sql string, args []any)) error {
	return s.inSession(ctx, func(conn *pgx.Conn) error {
		var l life
		b := &pgx.Batch{}
		b.Queue("BEGIN")
		s.lifeQuery(b, " FOR UPDATE", &l)
		if err := conn.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		b = &pgx.Batch{}
		if sql, args := change(l); sql != "" {
			b.Queue(sql, append([]any{s.kind.Name}, args...)...)
		}
		b.Queue("COMMIT")
		return conn.SendBatch(ctx, b).Close()
	})
}

// Fence holds back grants as after a loss: for use after an operator has put back an older state
// of the database in a way that cannot be noticed.
func (s *Store) Fence(ctx context.Context) (Fence, error) {
	f, err := s.made(ctx)
	if err == nil {
		err = s.beginFence(ctx, life{Fence: f.Fence}, reasonByHand)
	}
	if err == nil {
		f, err = s.Look(ctx, nil)
	}
	return f.Fence, err
}

// made looks at the store. It makes the tables first where there are none.
func (s *Store) made(ctx context.Context) (Moment, error) {
	m, err := s.Look(ctx, nil)
	if err == nil && m.Fence.Life == "" {
		if err = s.setup(ctx); err == nil {
			return s.Look(ctx, nil)
		}
	}
	return m, err
}

// Init says that the store knows all that was granted. It ends the fence.
func (s *Store) Init(ctx context.Context) error {
	if _, err := s.made(ctx); err != nil {
		return err
	}
	err := s.alter(ctx, func(life) (string, []any) {
		return "UPDATE life SET trusted = true, from_ms = 0, until_ms = 0, bounded = false, reason = '' WHERE kind = $1", nil
	})
	if err == nil {
		_, err = s.Look(ctx, nil)
	}
	return err
}

// inSession runs do in a session of the pool, which is given up if do leaves a
// transaction behind.
func (s *Store) inSession(ctx context.Context, do func(*pgx.Conn) error) error {
	held, err := s.client.acquire(ctx)
	if err != nil {
		return err
	}
	defer held.Release()
	if err := do(held.Conn()); err != nil {
		return s.client.cfg.explain(err)
	}
	return nil
}

// errBehind: the row is of another life, or knows of shorter terms than this process.
var errBehind = errors.New("the store's row is behind")
