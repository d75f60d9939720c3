package sqlite

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"

	"github.com/kazahana/kazahana/internal/conn/sqlitefile"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// reader is one pool of the file. It implements pool.Reader, within a transaction
// or a read.
type reader struct {
	*sqlitefile.Session
	name  string
	id    int64 // the row of table pool, 0 where there is none yet
	known pool.Pool
	// build makes the line where it is missing; nil where nothing is written.
	build func(*reader) error
}

// Pool implements pool.Reader.
func (r *reader) Pool() (pool.Pool, error) {
	var levels int64
	err := r.QueryRow("SELECT id, epoch_ms, bit_ts, levels FROM pool WHERE name = ?", []any{r.name},
		&r.id, &r.known.Timeline.EpochMS, &r.known.Timeline.BitTS, &levels)
	if errors.Is(err, sql.ErrNoRows) {
		return pool.Pool{}, nil
	}
	if err != nil {
		return pool.Pool{}, err
	}
	r.known.Exists = true
	for rest := uint64(levels); rest != 0; rest &= rest - 1 {
		r.known.Levels = append(r.known.Levels, bits.TrailingZeros64(rest))
	}
	if r.build != nil {
		err = r.build(r)
	}
	return r.known, err
}

// terms make leases of the pool's records.
func (r *reader) terms(bitSeq int) provider.Terms {
	return provider.Terms{Pool: r.name, Timeline: r.known.Timeline}.WithBitSeq(bitSeq)
}

// columns are those that record reads.
const columns = "start, bit_seq, created, expired, until, released, secret, service, meta, request, history_id"

// record reads a row with those columns.
func (r *reader) record(scan func(...any) error) (*pool.Record, error) {
	var start, created, expired int64
	var bitSeq int
	var secret, meta string
	record := &pool.Record{}
	if err := scan(&start, &bitSeq, &created, &expired, &record.End, &record.Released, &secret,
		&record.Service, &meta, &record.Request, &record.Number); err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(meta), &record.Meta); err != nil {
		return nil, fmt.Errorf("the meta of the record at %d is damaged: %w", start, err)
	}
	record.Lease = r.terms(bitSeq).Lease(start>>bitSeq, created, expired, record.End, secret)
	return record, nil
}

// one reads one record, nil where there is none.
func (r *reader) one(key pool.Key) (*pool.Record, error) {
	record, err := r.record(func(dest ...any) error {
		return r.QueryRow("SELECT "+columns+" FROM slot WHERE pool = ? AND start = ? AND bit_seq = ?", []any{r.id, key.Start, key.BitSeq}, dest...)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return record, err
}

// rows collects what read makes of each row.
func rows[T any](s *sqlitefile.Session, query string, args []any, read func(scan func(...any) error) (T, error)) (all []T, err error) {
	err = s.QueryRows(query, args, func(scan func(...any) error) error {
		row, err := read(scan)
		all = append(all, row)
		return err
	})
	return all, err
}

// Records implements pool.Reader.
func (r *reader) Records(keys []pool.Key) (all []*pool.Record, err error) {
	all = make([]*pool.Record, len(keys))
	for i := 0; i < len(keys) && err == nil; i++ {
		all[i], err = r.one(keys[i])
	}
	return all, err
}

// Answered implements pool.Reader.
func (r *reader) Answered(service, request string) (answered []*pool.Record, err error) {
	const query = `SELECT start, bit_seq, id FROM history WHERE request = ? AND pool = ? AND service = ? AND request <> '' ORDER BY id`
	var numbers []int64
	keys, err := rows(r.Session, query, []any{request, r.id, service}, func(scan func(...any) error) (key pool.Key, err error) {
		var number int64
		err = scan(&key.Start, &key.BitSeq, &number)
		numbers = append(numbers, number)
		return key, err
	})
	if err == nil {
		answered, err = r.Records(keys)
	}
	for i, record := range answered {
		if record != nil && record.Number != numbers[i] {
			answered[i] = nil // granted again since
		}
	}
	return answered, err
}

// Cursor implements pool.Reader.
func (r *reader) Cursor(ring pool.Ring) (machineID int64, known bool, err error) {
	err = r.QueryRow("SELECT machine_id FROM cursor WHERE pool = ? AND bit_seq = ? AND low = ? AND high = ?",
		[]any{r.id, ring.BitSeq, ring.IDs.Low, ring.IDs.End - 1}, &machineID)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	return machineID, err == nil, err
}

// Taken implements pool.Reader.
func (r *reader) Taken(levels []int, keys []pool.Key) (taken []pool.Taken, err error) {
	taken = make([]pool.Taken, len(keys))
	for i, key := range keys {
		if taken[i].Own, err = r.one(key); err != nil {
			return nil, err
		}
		for _, coarser := range key.Coarser(levels) {
			other, err := r.one(coarser)
			if err != nil {
				return nil, err
			}
			if other != nil {
				taken[i].Others = max(taken[i].Others, other.End)
			}
		}
		if !key.HasFiner(levels) {
			continue
		}
		var finer int64
		if err := r.QueryRow("SELECT coalesce(max(until), 0) FROM slot WHERE pool = ? AND start >= ? AND start < ? AND bit_seq < ?",
			[]any{r.id, key.Start, key.Slot().End, key.BitSeq}, &finer); err != nil {
			return nil, err
		}
		taken[i].Others = max(taken[i].Others, finer)
	}
	return taken, nil
}

// History implements pool.Reader.
func (r *reader) History(keys []pool.Key, atMS int64) ([]pool.Record, error) {
	var grants []pool.Record
	const query = `SELECT start, bit_seq, created, expired, until, released, '', service, meta, request, id FROM history
		WHERE pool = ? AND start = ? AND bit_seq = ? AND created <= ? AND expired > ?`
	for _, key := range keys {
		found, err := rows(r.Session, query, []any{r.id, key.Start, key.BitSeq, atMS, atMS}, r.record)
		if err != nil {
			return nil, err
		}
		for _, record := range found {
			grants = append(grants, *record)
		}
	}
	return grants, nil
}

// Next implements pool.LineReader.
func (r *reader) Next(span snowflake.Slot, after pool.Place, limit int) ([]pool.Segment, error) {
	return r.segments(`SELECT low, high, free_at, bit_seq FROM segment
		WHERE pool = ? AND (free_at, low) > (?, ?) AND low < ? AND high > ? ORDER BY free_at, low LIMIT ? + 0`,
		r.id, after.FreeAt, after.Low, span.End, span.Start, limit)
}

// Over implements pool.LineReader.
func (r *reader) Over(span snowflake.Slot, freeAfter int64) ([]pool.Segment, error) {
	return r.segments(`SELECT low, high, free_at, bit_seq FROM segment
		WHERE pool = ?1 AND low >= (SELECT low FROM segment WHERE pool = ?1 AND low <= ?2 ORDER BY low DESC LIMIT 1)
		AND low < ?3 AND free_at > ?4 ORDER BY low`,
		r.id, span.Start, span.End, freeAfter)
}

func (r *reader) segments(query string, args ...any) ([]pool.Segment, error) {
	return rows(r.Session, query, args, func(scan func(...any) error) (s pool.Segment, err error) {
		err = scan(&s.Low, &s.End, &s.FreeAt, &s.BitSeq)
		return s, err
	})
}

// listPage is how many records are read at a time: about a millisecond in which no
// lease is granted.
const listPage = 200

// list reads the page of records that follows those read before.
func (r *reader) list(before []provider.Record) ([]provider.Record, error) {
	if known, err := r.Pool(); err != nil || !known.Exists {
		return nil, err
	}
	after := pool.Key{Start: -1}
	if n := len(before); n > 0 {
		after = pool.KeyOf(before[n-1].Lease)
	}
	const query = "SELECT " + columns + " FROM slot WHERE pool = ? AND (start, bit_seq) > (?, ?) ORDER BY start, bit_seq LIMIT ? + 0"
	found, err := rows(r.Session, query, []any{r.id, after.Start, after.BitSeq, listPage}, r.record)
	if err != nil {
		return nil, err
	}
	page := make([]provider.Record, len(found))
	for i, record := range found {
		page[i] = record.Shown()
	}
	return page, nil
}

// marks is what the line follows from.
func (r *reader) marks() ([]pool.Mark, error) {
	return rows(r.Session, "SELECT start, bit_seq, created, until FROM slot WHERE pool = ? ORDER BY start, bit_seq DESC", []any{r.id},
		func(scan func(...any) error) (m pool.Mark, err error) {
			err = scan(&m.Start, &m.BitSeq, &m.Created, &m.End)
			return m, err
		})
}
