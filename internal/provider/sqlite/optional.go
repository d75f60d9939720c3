package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
)

// Extend implements provider.Extender.
func (p *Provider) Extend(ctx context.Context, req provider.ExtendRequest) (lease.Lease, error) {
	terms := p.services.Of(req.Service)
	var longer lease.Lease
	// A refusal is committed too, because it is counted.
	var refusal error
	err := p.write(ctx, func(t *transaction) (err error) {
		longer, refusal, err = t.extend(terms, req)
		return err
	}, nil)
	if err != nil {
		return lease.Lease{}, err // op may still be running
	}
	if refusal != nil {
		return lease.Lease{}, refusal
	}
	return longer, nil
}

// extend moves the end of a living lease. refusal says why it does not.
func (t *transaction) extend(terms provider.Terms, req provider.ExtendRequest) (longer lease.Lease, refusal, err error) {
	pl, err := findPool(t.Session, terms.Pool, &terms.Timeline)
	if errors.Is(err, errNoPool) {
		return lease.Lease{}, t.forgotten(provider.ErrNotFound), nil
	}
	if err != nil {
		return lease.Lease{}, nil, err
	}
	if !pl.hasSlot(req.ID, req.BitSeq) {
		return lease.Lease{}, t.forgotten(provider.ErrNotFound), nil
	}
	longer, refusal, err = t.extendSlot(pl, terms, req)
	if err != nil {
		return lease.Lease{}, nil, err
	}
	return longer, refusal, t.countExtend(pl.name, refusal)
}

func (t *transaction) extendSlot(pl *pool, terms provider.Terms, req provider.ExtendRequest) (longer lease.Lease, refusal, err error) {
	start := req.ID << req.BitSeq
	var created, expired, until, historyID int64
	var released bool
	var secret string
	err = t.QueryRow("SELECT created, expired, until, released, secret, history_id FROM slot WHERE pool = ? AND start = ? AND bit_seq = ?",
		[]any{pl.id, start, req.BitSeq}, &created, &expired, &until, &released, &secret, &historyID)
	if errors.Is(err, sql.ErrNoRows) {
		return lease.Lease{}, t.forgotten(provider.ErrNotFound), nil
	}
	if err != nil {
		return lease.Lease{}, nil, err
	}
	if !req.Signed(secret) {
		if created < req.CreatedMS { // an older record than the lease's
			return lease.Lease{}, t.forgotten(provider.ErrBadSignature), nil
		}
		return lease.Lease{}, provider.ErrBadSignature, nil
	}
	if released || t.NowMS >= expired {
		return lease.Lease{}, provider.ErrConflict, nil
	}
	// As for a grant, all others that overlap must have ended: while the clock
	// was ahead, one may have been granted that the longer lease would meet.
	others, err := t.othersUntil(pl, start, req.BitSeq)
	if err != nil {
		return lease.Lease{}, nil, err
	}
	if others > t.NowMS {
		return lease.Lease{}, provider.ErrConflict, nil
	}
	before := until
	expired, until = req.Extended(terms, t.NowMS, expired, until)
	longer = pl.layoutTerms(req.BitSeq).Lease(req.ID, created, expired, until, "")
	return longer, nil, t.lengthen(pl, longer, historyID, before)
}

// othersUntil is the greatest end of the other slots' records that overlap the
// slot. It looks at every finer one inside: extending is rare.
func (t *transaction) othersUntil(pl *pool, start int64, bitSeq int) (latest int64, err error) {
	for levels := pl.levels >> (bitSeq + 1) << (bitSeq + 1); levels != 0; levels &= levels - 1 {
		coarser := bits.TrailingZeros64(levels)
		until, err := t.slotUntil(pl, start>>coarser<<coarser, coarser)
		if err != nil {
			return 0, err
		}
		latest = max(latest, until)
	}
	if pl.levels&(1<<bitSeq-1) == 0 {
		return latest, nil
	}
	var finer int64
	err = t.QueryRow("SELECT coalesce(max(until), 0) FROM slot WHERE pool = ? AND start >= ? AND start < ? AND bit_seq < ?",
		[]any{pl.id, start, start + 1<<bitSeq, bitSeq}, &finer)
	return max(latest, finer), err
}

// lengthen writes the new times of a lease whose slot was taken until `before`.
func (t *transaction) lengthen(pl *pool, l lease.Lease, historyID, before int64) (err error) {
	start := l.Slot().Start
	t.Grants(l.ReservedUntil)
	if _, err := t.Exec("UPDATE slot SET expired = ?, until = ? WHERE pool = ? AND start = ? AND bit_seq = ?",
		l.Expired, l.ReservedUntil, pl.id, start, l.BitSeq); err != nil {
		return err
	}
	// The history may have lost the grant, after a clock that was far ahead.
	if _, err := t.Exec("UPDATE history SET expired = ?, until = ? WHERE id = ? AND pool = ? AND start = ? AND bit_seq = ?",
		l.Expired, l.ReservedUntil, historyID, pl.id, start, l.BitSeq); err != nil {
		return err
	}
	if l.ReservedUntil == before {
		return nil
	}
	if pl.rings, err = t.rings(pl.id); err != nil {
		return err
	}
	// As after a grant, no other record that overlaps ends as late as this one.
	return t.raise(pl, start, l.BitSeq, before, l.ReservedUntil)
}

// Locate implements provider.Locator. It knows the grants that have ended in
// the last 30 days, and those that have not.
func (p *Provider) Locate(ctx context.Context, service string, low, atMS int64) ([]provider.Record, error) {
	poolName := p.services.Of(service).Pool
	return sqlitefile.Read(ctx, p.file, func(s *sqlitefile.Session) ([]provider.Record, error) {
		return locate(s, poolName, low, atMS)
	})
}

func locate(s *sqlitefile.Session, poolName string, low, atMS int64) ([]provider.Record, error) {
	pl, err := findPool(s, poolName, nil)
	if errors.Is(err, errNoPool) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if low < 0 || low >= pl.timeline.FallbackBit() {
		return nil, nil // no slot covers it
	}
	var found []provider.Record
	for levels := pl.levels; levels != 0; levels &= levels - 1 {
		bitSeq := bits.TrailingZeros64(levels)
		start := low >> bitSeq << bitSeq
		const query = `SELECT created, expired, until, released, service, meta FROM history
			WHERE pool = ? AND start = ? AND bit_seq = ? AND created <= ? AND expired > ? AND (released = 0 OR until > ?)`
		err := s.QueryRows(query, []any{pl.id, start, bitSeq, atMS, atMS, atMS}, func(scan func(...any) error) error {
			var created, expired int64
			var meta string
			var r provider.Record
			if err := scan(&created, &expired, &r.End, &r.Released, &r.Service, &meta); err != nil {
				return err
			}
			if err := json.Unmarshal([]byte(meta), &r.Meta); err != nil {
				return fmt.Errorf("the meta of a grant of the slot at %d is damaged: %w", start, err)
			}
			r.Lease = pl.layoutTerms(bitSeq).Lease(start>>bitSeq, created, expired, r.End, "")
			found = append(found, r)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(found, func(a, b provider.Record) int { return cmp.Compare(b.Lease.Created, a.Lease.Created) })
	return found, nil
}

// count adds to the pool's counters.
func (t *transaction) count(poolName string, clients, granted, full, extended, notOwner, tooLate int) error {
	_, err := t.Exec(`INSERT INTO counter (pool, clients, granted, full, extended, extend_not_owner, extend_too_late)
		SELECT id, ?, ?, ?, ?, ?, ? FROM pool WHERE name = ? ON CONFLICT DO UPDATE SET
			clients = clients + excluded.clients, granted = granted + excluded.granted, full = full + excluded.full,
			extended = extended + excluded.extended, extend_not_owner = extend_not_owner + excluded.extend_not_owner,
			extend_too_late = extend_too_late + excluded.extend_too_late`,
		clients, granted, full, extended, notOwner, tooLate, poolName)
	return err
}

// countAcquire counts an acquire that was granted or found the pool full, and
// returns its outcome. Others leave nothing in the file, so they are not counted.
// first says that the client was not counted before.
func (t *transaction) countAcquire(poolName string, first bool, outcome error) error {
	var full *provider.FullError
	if outcome != nil && !errors.As(outcome, &full) {
		return outcome
	}
	err := t.count(poolName, one(first), one(outcome == nil), one(outcome != nil), 0, 0, 0)
	if err == nil && outcome != nil {
		err = sqlitefile.Answer(outcome)
	}
	return err
}

func (t *transaction) countExtend(poolName string, refusal error) error {
	return t.count(poolName, 0, 0, 0, one(refusal == nil),
		one(errors.Is(refusal, provider.ErrBadSignature)), one(errors.Is(refusal, provider.ErrConflict)))
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Counters implements provider.Counter.
func (p *Provider) Counters(ctx context.Context, service string) (map[string]int64, error) {
	poolName := p.services.Of(service).Pool
	return sqlitefile.Read(ctx, p.file, func(s *sqlitefile.Session) (map[string]int64, error) {
		return counters(s, poolName)
	})
}

func counters(s *sqlitefile.Session, poolName string) (map[string]int64, error) {
	var clients, granted, full, extended, notOwner, tooLate int64
	err := s.QueryRow(`SELECT c.clients, c.granted, c.full, c.extended, c.extend_not_owner, c.extend_too_late
		FROM pool p JOIN counter c ON c.pool = p.id WHERE p.name = ?`, []any{poolName},
		&clients, &granted, &full, &extended, &notOwner, &tooLate)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, err
	}
	return map[string]int64{
		provider.CountClients:     clients,
		provider.CountAcquires:    granted + full,
		provider.CountGranted:     granted,
		provider.CountFull:        full,
		provider.CountExtends:     extended + notOwner + tooLate,
		provider.CountExtended:    extended,
		provider.CountNotOwner:    notOwner,
		provider.CountExtendEnded: tooLate,
	}, nil
}
