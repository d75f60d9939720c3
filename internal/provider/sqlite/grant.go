package sqlite

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"time"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// historyKept is how long a grant is remembered after its end, beyond the
// record that every slot keeps for ever.
const historyKept = 30 * 24 * time.Hour

// pool is a row of table pool, with its rings.
type pool struct {
	id       int64
	name     string
	timeline snowflake.Timeline
	levels   uint64 // bit n is set when a record has bit_seq n
	rings    []ring
}

var (
	errNoPool = errors.New("the pool does not exist yet")
	// errInconsistent: the tables contradict each other. It stops a grant that
	// would break the grant rule.
	errInconsistent = fmt.Errorf("%w: its index of free machine IDs contradicts its records; nothing is granted", sqlitefile.ErrInconsistent)
)

// findPool reads the pool. With want it is an error if the pool has another
// timeline.
func findPool(s *sqlitefile.Session, name string, want *snowflake.Timeline) (*pool, error) {
	pl := &pool{name: name}
	levels := int64(0)
	err := s.QueryRow("SELECT id, epoch_ms, bit_ts, levels FROM pool WHERE name = ?", []any{name},
		&pl.id, &pl.timeline.EpochMS, &pl.timeline.BitTS, &levels)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, errNoPool
	}
	if err != nil {
		return nil, err
	}
	if want != nil && pl.timeline != *want {
		return nil, provider.TimelineError(name, pl.timeline, *want)
	}
	pl.levels = uint64(levels)
	return pl, nil
}

// pool reads the service's pool with its rings, and records it if it is new.
func (t *transaction) pool(terms provider.Terms) (*pool, error) {
	pl, err := findPool(t.Session, terms.Pool, &terms.Timeline)
	if errors.Is(err, errNoPool) {
		if _, err := t.Exec("INSERT INTO pool (name, epoch_ms, bit_ts, levels) VALUES (?, ?, ?, 0)",
			terms.Pool, terms.Timeline.EpochMS, terms.Timeline.BitTS); err != nil {
			return nil, err
		}
		pl, err = findPool(t.Session, terms.Pool, &terms.Timeline)
	}
	if err != nil {
		return nil, err
	}
	pl.rings, err = t.rings(pl.id)
	return pl, err
}

// layoutTerms is terms that make leases of a record of the pool.
func (pl *pool) layoutTerms(bitSeq int) provider.Terms {
	return provider.Terms{Pool: pl.name, Timeline: pl.timeline}.WithBitSeq(bitSeq)
}

// acquire grants what is asked for, or as much as is free.
func (t *transaction) acquire(terms provider.Terms, req provider.AcquireRequest) ([]lease.Lease, error) {
	if err := terms.CheckClock(t.NowMS); err != nil {
		return nil, err
	}
	pl, err := t.pool(terms)
	if err != nil {
		return nil, err
	}
	if leases, err := t.replay(pl, req); leases != nil || err != nil {
		return leases, err
	}
	meta, err := json.Marshal(req.Meta)
	if err != nil {
		return nil, err
	}
	r, err := t.ring(pl, terms)
	if err != nil {
		return nil, err
	}
	var leases []lease.Lease
	for range terms.LeaseCount(req.ThroughputPerMS) {
		id, freeAt, err := t.choose(r)
		if err != nil {
			return nil, err
		}
		if freeAt > t.NowMS && len(leases) > 0 {
			break // some are better than none
		}
		if freeAt > t.NowMS {
			return nil, &provider.FullError{Pool: pl.name, Slots: r.high - r.low + 1, NextEndMS: freeAt}
		}
		l := terms.Grant(id, t.NowMS, provider.NewSecret())
		if err := t.record(pl, r, l, req, string(meta)); err != nil {
			return nil, err
		}
		leases = append(leases, l)
	}
	// Twice as many as come: a backlog shrinks, and no acquire is burdened.
	return leases, t.forget(2 * len(leases))
}

// replay is the answer to a request that was granted before, nil when it was
// not.
func (t *transaction) replay(pl *pool, req provider.AcquireRequest) ([]lease.Lease, error) {
	if req.RequestID == "" {
		return nil, nil
	}
	var leases []lease.Lease
	const query = `SELECT h.start, h.bit_seq, h.created, h.expired, h.until, s.secret, s.released
		FROM history h LEFT JOIN slot s
		  ON s.pool = h.pool AND s.start = h.start AND s.bit_seq = h.bit_seq AND s.history_id = h.id
		WHERE h.request = ? AND h.pool = ? AND h.service = ? AND h.request <> '' ORDER BY h.id`
	err := t.QueryRows(query, []any{req.RequestID, pl.id, req.Service}, func(scan func(...any) error) error {
		var start, created, expired, until int64
		var bitSeq int
		var secret sql.NullString
		var released sql.NullBool
		if err := scan(&start, &bitSeq, &created, &expired, &until, &secret, &released); err != nil {
			return err
		}
		if !secret.Valid || released.Bool || t.NowMS >= expired {
			return provider.ErrConflict
		}
		leases = append(leases, pl.layoutTerms(bitSeq).Lease(start>>bitSeq, created, expired, until, secret.String))
		return nil
	})
	return leases, err
}

// record writes a grant. It does not rely on what chose the slot: the records
// themselves are asked once more whether it is free.
func (t *transaction) record(pl *pool, r *ring, l lease.Lease, req provider.AcquireRequest, meta string) error {
	start := l.Slot().Start
	t.Grants(l.ReservedUntil)
	if pl.levels&^(1<<l.BitSeq) != 0 {
		busyUntil, err := t.available(pl, r, l.ID)
		if err != nil {
			return err
		}
		if busyUntil > t.NowMS {
			return fmt.Errorf("%w: machine ID %d (bit_seq %d)", errInconsistent, l.ID, l.BitSeq)
		}
	}
	before, err := t.slotUntil(pl, start, l.BitSeq)
	if err != nil {
		return err
	}
	inserted, err := t.Exec(`INSERT INTO history (pool, start, bit_seq, created, expired, until, released, service, meta, request)
		VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?)`,
		pl.id, start, l.BitSeq, l.Created, l.Expired, l.ReservedUntil, req.Service, meta, req.RequestID)
	if err != nil {
		return err
	}
	historyID, err := inserted.LastInsertId()
	if err != nil {
		return err
	}
	written, err := t.Exec(`INSERT INTO slot (pool, start, bit_seq, created, expired, until, released, secret, service, meta, request, history_id)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, ?8, ?9, ?10, ?11)
		ON CONFLICT DO UPDATE SET created = ?4, expired = ?5, until = ?6, released = 0, secret = ?7, service = ?8,
			meta = ?9, request = ?10, history_id = ?11
		WHERE until <= ?12`,
		pl.id, start, l.BitSeq, l.Created, l.Expired, l.ReservedUntil, l.Secret, req.Service, meta, req.RequestID, historyID, t.NowMS)
	if err != nil {
		return err
	}
	if n, err := written.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, fmt.Errorf("%w: machine ID %d (bit_seq %d)", errInconsistent, l.ID, l.BitSeq))
	}
	if level := uint64(1) << l.BitSeq; pl.levels&level == 0 {
		pl.levels |= level
		if _, err := t.Exec("UPDATE pool SET levels = ? WHERE id = ?", int64(pl.levels), pl.id); err != nil {
			return err
		}
	}
	if err := t.move(r, l.ID, historyID); err != nil {
		return err
	}
	return t.raise(pl, start, l.BitSeq, before, l.ReservedUntil)
}

// slotUntil is the slot's own end, 0 when it was never granted.
func (t *transaction) slotUntil(pl *pool, start int64, bitSeq int) (until int64, err error) {
	err = t.QueryRow("SELECT until FROM slot WHERE pool = ? AND start = ? AND bit_seq = ?", []any{pl.id, start, bitSeq}, &until)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return until, err
}

// forget removes at most n grants from the history that ended long ago. A clock
// that jumps far ahead makes it remove some too early, n for each grant; the
// records of slots are not touched.
func (t *transaction) forget(n int) error {
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

// release ends a grant early.
func (t *transaction) release(poolName string, req provider.ReleaseRequest) error {
	pl, err := findPool(t.Session, poolName, nil)
	if errors.Is(err, errNoPool) {
		return provider.ErrNotFound
	}
	if err != nil {
		return err
	}
	if pl.rings, err = t.rings(pl.id); err != nil {
		return err
	}
	notOurs := provider.ErrNotFound
	for levels := pl.levels; levels != 0; levels &= levels - 1 {
		bitSeq := bits.TrailingZeros64(levels)
		ids := pl.layoutTerms(bitSeq).Range()
		if !ids.Contains(req.ID) || req.BitSeq != provider.AnyBitSeq && req.BitSeq != bitSeq {
			continue
		}
		err := t.releaseSlot(pl, req, bitSeq)
		switch {
		case errors.Is(err, provider.ErrBadSignature):
			notOurs = err
		case !errors.Is(err, provider.ErrNotFound):
			return err
		}
	}
	return notOurs
}

// releaseSlot ends the grant of one slot, if the request is signed for it.
func (t *transaction) releaseSlot(pl *pool, req provider.ReleaseRequest, bitSeq int) error {
	start := req.ID << bitSeq
	var created, expired, until, historyID int64
	var released bool
	var secret string
	err := t.QueryRow("SELECT created, expired, until, released, secret, history_id FROM slot WHERE pool = ? AND start = ? AND bit_seq = ?",
		[]any{pl.id, start, bitSeq}, &created, &expired, &until, &released, &secret, &historyID)
	if errors.Is(err, sql.ErrNoRows) {
		return provider.ErrNotFound
	}
	if err != nil {
		return err
	}
	if !req.Signed(secret) {
		return provider.ErrBadSignature
	}
	if err := req.CheckTime(t.NowMS, expired); err != nil || released {
		return err
	}
	end := provider.ReleasedEnd(created, until, req.TimestampMS)
	if _, err := t.Exec("UPDATE slot SET until = ?, released = 1 WHERE pool = ? AND start = ? AND bit_seq = ?",
		end, pl.id, start, bitSeq); err != nil {
		return err
	}
	if _, err := t.Exec("UPDATE history SET until = ?, released = 1 WHERE id = ? AND pool = ? AND start = ? AND bit_seq = ?",
		end, historyID, pl.id, start, bitSeq); err != nil {
		return err
	}
	if end == until {
		return nil
	}
	return t.lower(pl, start, bitSeq, until, end)
}
