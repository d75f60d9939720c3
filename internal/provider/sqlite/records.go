package sqlite

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/kazahana/kazahana/internal/lease"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/sqlitefile"
)

// listPage is how many records are read at a time: some milliseconds in which
// no lease is granted.
const listPage = 1000

// verify returns the leases that are no longer the caller's.
func verify(s *sqlitefile.Session, poolName string, leases []lease.Lease) ([]lease.Lease, error) {
	pl, err := findPool(s, poolName, nil)
	if errors.Is(err, errNoPool) {
		return leases, nil
	}
	if err != nil {
		return nil, err
	}
	var lost []lease.Lease
	for _, l := range leases {
		var secret string
		var released bool
		err := s.QueryRow("SELECT secret, released FROM slot WHERE pool = ? AND start = ? AND bit_seq = ?",
			[]any{pl.id, l.Slot().Start, l.BitSeq}, &secret, &released)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			lost = append(lost, l)
		case err != nil:
			return nil, err
		case secret != l.Secret || released:
			lost = append(lost, l)
		}
	}
	return lost, nil
}

// list reads the page of records that follows those read before.
func list(s *sqlitefile.Session, poolName string, before []provider.Record) ([]provider.Record, error) {
	pl, err := findPool(s, poolName, nil)
	if errors.Is(err, errNoPool) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	lastStart, lastBitSeq := int64(-1), 0
	if n := len(before); n > 0 {
		lastStart, lastBitSeq = before[n-1].Lease.Slot().Start, before[n-1].Lease.BitSeq
	}
	var page []provider.Record
	const query = `SELECT start, bit_seq, created, expired, until, released, service, meta FROM slot
		WHERE pool = ? AND (start, bit_seq) > (?, ?) ORDER BY start, bit_seq LIMIT ? + 0`
	err = s.QueryRows(query, []any{pl.id, lastStart, lastBitSeq, listPage}, func(scan func(...any) error) error {
		var start, created, expired int64
		var bitSeq int
		var meta string
		var r provider.Record
		if err := scan(&start, &bitSeq, &created, &expired, &r.End, &r.Released, &r.Service, &meta); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(meta), &r.Meta); err != nil {
			return fmt.Errorf("the meta of the record at %d is damaged: %w", start, err)
		}
		r.Lease = pl.layoutTerms(bitSeq).Lease(start>>bitSeq, created, expired, r.End, "")
		page = append(page, r)
		return nil
	})
	return page, err
}
