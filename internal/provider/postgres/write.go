package postgres

import (
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/snowflake"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
)

// tables of all pools. Times are Unix ms, starts are low-bit values. Rows of slot are
// never deleted; line and cursor follow from them. Indexes are constraints: a statement
// that makes one would wait for those who use the table.
var tables = []string{
	`CREATE TABLE IF NOT EXISTS pool (
		name     text   PRIMARY KEY,
		epoch_ms bigint NOT NULL,
		bit_ts   int    NOT NULL,
		levels   int[]  NOT NULL
	)`,
	`CREATE TABLE IF NOT EXISTS slot (` + grantColumns + `,
		secret   text   NOT NULL,
		PRIMARY KEY (pool, start, bit_seq)
	)`,
	`CREATE TABLE IF NOT EXISTS history (` + grantColumns + `,
		nth      int    NOT NULL,
		PRIMARY KEY (pool, start, bit_seq, number),
		UNIQUE (request, pool, start, bit_seq, number),
		UNIQUE (until, pool, start, bit_seq, number)
	)`,
	`CREATE TABLE IF NOT EXISTS line (
		pool     text   NOT NULL,
		low      bigint NOT NULL,
		high     bigint NOT NULL,
		free_at  bigint NOT NULL,
		bit_seq  int    NOT NULL,
		PRIMARY KEY (pool, low),
		UNIQUE (pool, free_at, low)
	)`,
	`CREATE TABLE IF NOT EXISTS cursor (
		pool       text   NOT NULL,
		bit_seq    int    NOT NULL,
		low        bigint NOT NULL,
		high       bigint NOT NULL,
		machine_id bigint NOT NULL,
		PRIMARY KEY (pool, bit_seq, low, high)
	)`,
	`CREATE TABLE IF NOT EXISTS counter (
		pool     text   NOT NULL,
		name     text   NOT NULL,
		n        bigint NOT NULL,
		PRIMARY KEY (pool, name)
	)`,
}

const grantColumns = `
		pool     text   NOT NULL,
		start    bigint NOT NULL,
		bit_seq  int    NOT NULL,
		number   bigint NOT NULL,
		created  bigint NOT NULL,
		expired  bigint NOT NULL,
		until    bigint NOT NULL,
		state    text   NOT NULL,
		service  text   NOT NULL,
		meta     jsonb  NOT NULL,
		request  text   NOT NULL`

// trimMax is how many grants of the past a grant deletes: more than it adds.
const trimMax = 2

// write queues the change.
func (r *reader) write(tx *postgresconn.Tx, c pool.Change) {
	if c.Create != nil {
		tx.Queue("INSERT INTO pool (name, epoch_ms, bit_ts, levels) VALUES ($1, $2, $3, '{}')", r.name, c.Create.EpochMS, c.Create.BitTS)
	}
	if c.Levels != nil {
		tx.Queue("UPDATE pool SET levels = $2 WHERE name = $1", r.name, c.Levels)
	}
	for i, g := range c.Grants {
		r.writeGrant(tx, i, g)
	}
	for _, e := range c.Ended {
		state := stateHeld
		if e.Released {
			state = stateGivenBack
		}
		for _, table := range []string{"slot", "history"} {
			tx.Queue("UPDATE "+table+" SET expired = $5, until = $6, state = $7 WHERE (pool, start, bit_seq, number) = ($1, $2, $3, $4)",
				r.name, e.Key().Start, e.Key().BitSeq, e.Number, e.Lease.Expired, e.End, state)
		}
	}
	if at := c.Cursor; at != nil {
		tx.Queue("INSERT INTO cursor VALUES ($1, $2, $3, $4, $5) ON CONFLICT (pool, bit_seq, low, high) DO UPDATE SET machine_id = excluded.machine_id",
			r.name, at.Ring.BitSeq, at.Ring.IDs.Low, at.Ring.IDs.End-1, at.MachineID)
	}
	for _, span := range c.Erase {
		tx.Queue("DELETE FROM line WHERE pool = $1 AND low >= $2 AND low < $3", r.name, span.Start, span.End)
	}
	for _, s := range c.Paint {
		tx.Queue("INSERT INTO line VALUES ($1, $2, $3, $4, $5) ON CONFLICT (pool, low) DO UPDATE SET high = excluded.high, free_at = excluded.free_at, bit_seq = excluded.bit_seq",
			r.name, s.Low, s.End, s.FreeAt, s.BitSeq)
	}
}

// readMarks queues what a line follows from.
func (r *reader) readMarks(b *pgx.Batch) {
	r.readPool(b)
	into(b, &r.marks, func(row pgx.CollectableRow) (m pool.Mark, err error) {
		err = row.Scan(&m.Start, &m.BitSeq, &m.Created, &m.End)
		return m, err
	}, "SELECT start, bit_seq, created, until FROM slot WHERE pool = $1 ORDER BY start, bit_seq DESC", r.name)
}

// renewLine queues the line that the records make, in the place of the one that is kept.
func (r *reader) renewLine(pool.Moment) error {
	line := pool.NewLine(pool.EmptyLine(r.known.Timeline), r.marks).Segments()
	r.write(r.tx, pool.Change{Erase: []snowflake.Slot{{End: math.MaxInt64}}, Paint: line})
	return nil
}

// writeGrant queues the nth grant of a request.
func (r *reader) writeGrant(tx *postgresconn.Tx, nth int, g pool.Record) {
	meta := g.Meta
	if meta == nil {
		meta = map[string]string{}
	}
	const given = "pool, start, bit_seq, number, created, expired, until, state, service, meta, request"
	args := []any{
		r.name, g.Key().Start, g.Key().BitSeq, g.Number, g.Lease.Created, g.Lease.Expired, g.End, stateHeld, g.Service, meta, g.Request,
	}
	tx.Queue("INSERT INTO slot ("+given+`, secret) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) ON CONFLICT (pool, start, bit_seq)
		DO UPDATE SET number = $4, created = $5, expired = $6, until = $7, state = $8, service = $9, meta = $10, request = $11, secret = $12`,
		append(args, g.Lease.Secret)...)
	tx.Queue("INSERT INTO history ("+given+", nth) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)", append(args, nth)...)
	tx.Queue(`DELETE FROM history WHERE (pool, start, bit_seq, number) IN
		(SELECT pool, start, bit_seq, number FROM history WHERE until < $1 ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED)`,
		tx.NowMS-historyKept.Milliseconds(), trimMax)
}

// count queues the counters that go up.
func (r *reader) count(tx *postgresconn.Tx, names []string) {
	for _, name := range names {
		tx.Queue("INSERT INTO counter VALUES ($1, $2, 1) ON CONFLICT (pool, name) DO UPDATE SET n = counter.n + 1", r.name, name)
	}
}

// claimsOf returns the keys of the records that the claims are about.
func claimsOf(t provider.Terms, claims []provider.Claim) (keys []pool.Key) {
	for _, c := range claims {
		if key, ok := pool.KeyAt(t.Timeline, c.ID, c.BitSeq); ok {
			keys = append(keys, key)
		}
	}
	return keys
}
