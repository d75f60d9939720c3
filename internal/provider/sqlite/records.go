package sqlite

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	sqlitefile "github.com/kazahana/kazahana/internal/conn/sqlite"
	"github.com/kazahana/kazahana/internal/provider"
)

// listPage is how many records are read at a time: some milliseconds in which
// no lease is granted.
const listPage = 1000

// verify returns the positions of the claims whose lease is no longer the caller's.
// What a fenced file lacks, or has an older record of, says nothing: the fence
// outlasts every lease that was lost.
func verify(s *sqlitefile.Session, poolName string, claims []provider.Claim, fenced bool) (lost []int, err error) {
	pl, err := findPool(s, poolName, nil)
	if err != nil && !errors.Is(err, errNoPool) {
		return nil, err
	}
	for i, c := range claims {
		var secret string
		var released bool
		var created int64
		err := sql.ErrNoRows
		if pl != nil && pl.hasSlot(c.ID, c.BitSeq) {
			err = s.QueryRow("SELECT secret, released, created FROM slot WHERE pool = ? AND start = ? AND bit_seq = ?",
				[]any{pl.id, c.ID << c.BitSeq, c.BitSeq}, &secret, &released, &created)
		}
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, err
		}
		isLost := !fenced // the record is gone, or an older one is back
		switch {
		case err != nil:
		case c.Signed(secret):
			isLost = released
		case created >= c.CreatedMS:
			isLost = true // taken over
		}
		if isLost {
			lost = append(lost, i)
		}
	}
	return lost, nil
}

// hasSlot reports whether the machine ID may have been granted in the layout.
func (pl *pool) hasSlot(machineID int64, bitSeq int) bool {
	return bitSeq >= 0 && pl.levels>>bitSeq&1 != 0 && pl.layoutTerms(bitSeq).Range().Contains(machineID)
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
