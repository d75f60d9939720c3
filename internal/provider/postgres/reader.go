package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/kazahana/kazahana/internal/conn/postgresconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// States of a grant.
const (
	stateHeld      = "held" // until it expires
	stateGivenBack = "given back"
)

// reader is a pool in a transaction. It implements pool.Reader: what was read when the
// transaction began is known, the rest is asked for.
type reader struct {
	ctx  context.Context
	tx   *postgresconn.Tx // nil: all is known
	name string

	known    pool.Pool
	answered []granted
	cursor   *int64
	first    page // of the line
	records  []*pool.Record
	history  []pool.Record
	marks    []pool.Mark // of all records; only for a line that is made anew
}

// page is what Next returns for its arguments.
type page struct {
	span     snowflake.Slot
	limit    int
	segments []pool.Segment
}

// beginning is before every place of a line.
var beginning = pool.Place{FreeAt: -1, Low: -1}

// columns are those of a record of table t and pool p, which record reads.
const (
	columns        = "t.secret, " + shown
	historyColumns = "'', " + shown // the history keeps no secrets
	shown          = "t.start, t.bit_seq, t.created, t.expired, t.until, t.state, t.service, t.meta, t.request, t.number, p.epoch_ms, p.bit_ts"
)

func record(row pgx.CollectableRow) (*pool.Record, error) {
	r := &pool.Record{}
	var key pool.Key
	var created, expired int64
	var state, secret string
	var timeline snowflake.Timeline
	err := row.Scan(&secret, &key.Start, &key.BitSeq, &created, &expired, &r.End, &state, &r.Service, &r.Meta, &r.Request, &r.Number,
		&timeline.EpochMS, &timeline.BitTS)
	r.Released = state == stateGivenBack
	r.Lease = provider.Terms{Timeline: timeline}.WithBitSeq(key.BitSeq).Lease(key.ID(), created, expired, r.End, secret)
	return r, err
}

// into queues a query whose rows are collected.
func into[T any](b *pgx.Batch, to *[]T, scan pgx.RowToFunc[T], sql string, args ...any) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		*to, err = pgx.CollectRows(rows, scan)
		return err
	})
}

// ask reads within the transaction.
func ask[T any](r *reader, scan pgx.RowToFunc[T], sql string, args ...any) (found []T, err error) {
	err = r.tx.Ask(r.ctx, func(b *pgx.Batch) { into(b, &found, scan, sql, args...) })
	return found, err
}

// optional is a row that need not be there.
func optional(b *pgx.Batch, sql string, args []any, scan func(pgx.Row) error) {
	b.Queue(sql, args...).QueryRow(func(row pgx.Row) error {
		if err := scan(row); !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		return nil
	})
}

// readPool queues the pool as a whole.
func (r *reader) readPool(b *pgx.Batch) {
	r.known = pool.Pool{}
	optional(b, "SELECT epoch_ms, bit_ts, levels FROM pool WHERE name = $1", []any{r.name}, func(row pgx.Row) error {
		err := row.Scan(&r.known.Timeline.EpochMS, &r.known.Timeline.BitTS, &r.known.Levels)
		r.known.Exists = err == nil
		return err
	})
}

// readAcquire queues what most acquires need to choose their machine IDs.
func (r *reader) readAcquire(b *pgx.Batch, t provider.Terms, req provider.AcquireRequest) {
	r.readPool(b)
	if req.RequestID != "" {
		into(b, &r.answered, pgx.RowToStructByPos[granted], "SELECT start, bit_seq, number FROM history WHERE request = $3 AND pool = $1 AND service = $2 ORDER BY nth",
			r.name, req.Service, req.RequestID)
	}
	ring := pool.RingOf(t)
	r.cursor = nil
	optional(b, "SELECT machine_id FROM cursor WHERE pool = $1 AND bit_seq = $2 AND low = $3 AND high = $4",
		[]any{r.name, ring.BitSeq, ring.IDs.Low, ring.IDs.End - 1}, func(row pgx.Row) error { return row.Scan(&r.cursor) })
	r.first = page{span: snowflake.Slot{Start: ring.IDs.Low << ring.BitSeq, End: ring.IDs.End << ring.BitSeq}, limit: t.LeaseCount(req.ThroughputPerMS) + firstPage}
	into(b, &r.first.segments, pgx.RowToStructByPos[pool.Segment], nextSQL, r.name, r.first.span.Start, r.first.span.End, beginning.FreeAt, beginning.Low, r.first.limit)
}

// granted is a grant of the history.
type granted struct {
	Start  int64
	BitSeq int
	Number int64
}

// Pool implements pool.Reader.
func (r *reader) Pool() (pool.Pool, error) { return r.known, nil }

// Answered implements pool.Reader.
func (r *reader) Answered(string, string) ([]*pool.Record, error) {
	var keys []pool.Key
	for _, g := range r.answered {
		keys = append(keys, pool.Key{Start: g.Start, BitSeq: g.BitSeq})
	}
	records, err := r.Records(keys)
	for i, found := range records {
		if found != nil && found.Number != r.answered[i].Number {
			records[i] = nil // granted again since
		}
	}
	return records, err
}

// Cursor implements pool.Reader.
func (r *reader) Cursor(pool.Ring) (int64, bool, error) {
	if r.cursor == nil {
		return 0, false, nil
	}
	return *r.cursor, true, nil
}

const (
	// firstPage is how many segments are read with the first message, beyond those that
	// are wanted.
	firstPage = 16

	nextSQL = `SELECT low, high, free_at, bit_seq FROM line WHERE pool = $1 AND (free_at, low) > ($4, $5) AND low < $3 AND high > $2
		ORDER BY free_at, low LIMIT $6`
	overSQL = `SELECT low, high, free_at, bit_seq FROM line WHERE pool = $1 AND low < $3 AND high > $2 AND free_at > $4
		AND low >= (SELECT max(low) FROM line WHERE pool = $1 AND low <= $2) ORDER BY low`
	recordsSQL = "SELECT " + columns + " FROM unnest($2::bigint[], $3::int[]) k (start, bit_seq) JOIN slot t ON (t.pool, t.start, t.bit_seq) = ($1, k.start, k.bit_seq) JOIN pool p ON p.name = $1"
	// othersSQL is the greatest end of the other slots that overlap each key: of those
	// that contain it, and of those inside.
	othersSQL = `SELECT greatest(
			(SELECT max(until) FROM unnest($4::int[]) level JOIN slot t ON (t.pool, t.start, t.bit_seq) = ($1, (k.start >> level) << level, level) WHERE level > k.bit_seq),
			(SELECT max(until) FROM slot t WHERE t.pool = $1 AND t.start >= k.start AND t.start < k.start + (1::bigint << k.bit_seq) AND t.bit_seq < k.bit_seq),
			0) FROM unnest($2::bigint[], $3::int[]) WITH ORDINALITY k (start, bit_seq, nth) ORDER BY nth`
)

// Next implements pool.Reader.
func (r *reader) Next(span snowflake.Slot, after pool.Place, limit int) ([]pool.Segment, error) {
	if f := r.first; after == beginning && span == f.span && (limit <= f.limit || len(f.segments) < f.limit) {
		return f.segments[:min(limit, len(f.segments))], nil
	}
	return ask(r, pgx.RowToStructByPos[pool.Segment], nextSQL, r.name, span.Start, span.End, after.FreeAt, after.Low, limit)
}

// Over implements pool.Reader.
func (r *reader) Over(span snowflake.Slot, freeAfter int64) ([]pool.Segment, error) {
	return ask(r, pgx.RowToStructByPos[pool.Segment], overSQL, r.name, span.Start, span.End, freeAfter)
}

// arrays are the keys as SQL takes them.
func arrays(keys []pool.Key) (starts []int64, bitSeqs []int) {
	for _, k := range keys {
		starts, bitSeqs = append(starts, k.Start), append(bitSeqs, k.BitSeq)
	}
	return starts, bitSeqs
}

// Records implements pool.Reader.
func (r *reader) Records(keys []pool.Key) ([]*pool.Record, error) {
	found := r.records
	if r.tx != nil && len(keys) > 0 {
		starts, bitSeqs := arrays(keys)
		var err error
		if found, err = ask(r, record, recordsSQL, r.name, starts, bitSeqs); err != nil {
			return nil, err
		}
	}
	byKey := map[pool.Key]*pool.Record{}
	for _, f := range found {
		byKey[f.Key()] = f
	}
	records := make([]*pool.Record, len(keys))
	for i, key := range keys {
		records[i] = byKey[key]
	}
	return records, nil
}

// Taken implements pool.Reader.
func (r *reader) Taken(levels []int, keys []pool.Key) ([]pool.Taken, error) {
	starts, bitSeqs := arrays(keys)
	var own []*pool.Record
	var others []int64
	err := r.tx.Ask(r.ctx, func(b *pgx.Batch) {
		into(b, &own, record, recordsSQL, r.name, starts, bitSeqs)
		into(b, &others, pgx.RowTo[int64], othersSQL, r.name, starts, bitSeqs, levels)
	})
	if err != nil {
		return nil, err
	}
	taken := make([]pool.Taken, len(keys))
	for i, key := range keys {
		taken[i].Others = others[i]
		for _, found := range own {
			if found.Key() == key {
				taken[i].Own = found
			}
		}
	}
	return taken, nil
}

// History implements pool.Reader.
func (r *reader) History([]pool.Key, int64) ([]pool.Record, error) { return r.history, nil }
