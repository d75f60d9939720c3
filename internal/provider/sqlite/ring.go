package sqlite

import (
	"database/sql"
	"errors"
	"math/bits"
	"math/rand/v2"

	"github.com/kazahana/kazahana/internal/provider"
)

// maxRings bounds what a grant has to update. A site has one or two, and a few
// more while it changes a layout or splits a range.
const maxRings = 16

// ring is a row of table ring: the machine IDs low to high, both included, of
// one bit_seq.
type ring struct {
	id        int64
	bitSeq    int
	low, high int64
	cursor    int64 // machine ID assigned last
}

// within is the machine IDs of the ring that a slot overlaps; false if none.
func (r *ring) within(start int64, bitSeq int) (low, high int64, ok bool) {
	low = start >> r.bitSeq
	high = max((start+1<<bitSeq-1)>>r.bitSeq, low)
	low, high = max(low, r.low), min(high, r.high)
	return low, high, low <= high
}

func (t *transaction) rings(poolID int64) ([]ring, error) {
	var all []ring
	err := t.QueryRows("SELECT id, bit_seq, low, high, cursor FROM ring WHERE pool = ?", []any{poolID},
		func(scan func(...any) error) error {
			var r ring
			if err := scan(&r.id, &r.bitSeq, &r.low, &r.high, &r.cursor); err != nil {
				return err
			}
			all = append(all, r)
			return nil
		})
	return all, err
}

// ring is the one that the terms grant from. A new one begins at a random
// machine ID: another host may have a file of its own, and a file that was lost
// may have been followed by this one.
func (t *transaction) ring(pl *pool, terms provider.Terms) (*ring, error) {
	ids := terms.Range()
	for i := range pl.rings {
		if r := &pl.rings[i]; r.bitSeq == terms.BitSeq && r.low == ids.Low && r.high == ids.End-1 {
			return r, nil
		}
	}
	if len(pl.rings) >= maxRings {
		if err := t.dropRing(pl); err != nil {
			return nil, err
		}
	}
	r := ring{bitSeq: terms.BitSeq, low: ids.Low, high: ids.End - 1, cursor: ids.Low + rand.Int64N(ids.Count())}
	inserted, err := t.Exec("INSERT INTO ring (pool, bit_seq, low, high, cursor, used) VALUES (?, ?, ?, ?, ?, 0)",
		pl.id, r.bitSeq, r.low, r.high, r.cursor)
	if err != nil {
		return nil, err
	}
	if r.id, err = inserted.LastInsertId(); err != nil {
		return nil, err
	}
	pl.rings = append(pl.rings, r)
	return &pl.rings[len(pl.rings)-1], t.build(pl, &r)
}

// dropRing removes the ring that was not granted from for longest. Its records
// stay; it is built anew if it is asked for again.
func (t *transaction) dropRing(pl *pool) error {
	var id int64
	if err := t.QueryRow("SELECT id FROM ring WHERE pool = ? ORDER BY used, id LIMIT 1", []any{pl.id}, &id); err != nil {
		return err
	}
	for _, q := range []string{"DELETE FROM run WHERE ring = ?", "DELETE FROM inside WHERE ring = ?", "DELETE FROM ring WHERE id = ?"} {
		if _, err := t.Exec(q, id); err != nil {
			return err
		}
	}
	for i := range pl.rings {
		if pl.rings[i].id == id {
			pl.rings = append(pl.rings[:i], pl.rings[i+1:]...)
			break
		}
	}
	return nil
}

// move sets the ring's cursor.
func (t *transaction) move(r *ring, machineID, historyID int64) error {
	r.cursor = machineID
	_, err := t.Exec("UPDATE ring SET cursor = ?, used = ? WHERE id = ?", machineID, historyID, r.id)
	return err
}

// run is a row of table run.
type run struct{ low, high, freeAt int64 }

// choose is the machine ID with the least (free_at, distance from the cursor),
// and when it can be granted.
func (t *transaction) choose(r *ring) (machineID, freeAt int64, err error) {
	if err := t.QueryRow("SELECT free_at FROM run WHERE ring = ? ORDER BY free_at LIMIT 1", []any{r.id}, &freeAt); err != nil {
		return 0, 0, err
	}
	next := r.cursor + 1
	if next > r.high {
		next = r.low
	}
	at, err := t.runAt(r, next)
	if err != nil || at.freeAt == freeAt {
		return next, freeAt, err
	}
	const query = "SELECT low FROM run WHERE ring = ? AND free_at = ? AND low >= ? ORDER BY low LIMIT 1"
	err = t.QueryRow(query, []any{r.id, freeAt, next}, &machineID)
	if errors.Is(err, sql.ErrNoRows) {
		err = t.QueryRow(query, []any{r.id, freeAt, r.low}, &machineID)
	}
	return machineID, freeAt, err
}

// runAt is the run that the machine ID lies in.
func (t *transaction) runAt(r *ring, machineID int64) (at run, err error) {
	err = t.QueryRow("SELECT low, high, free_at FROM run WHERE ring = ? AND low <= ? ORDER BY low DESC LIMIT 1",
		[]any{r.id, machineID}, &at.low, &at.high, &at.freeAt)
	return at, err
}

// setRun makes one run of low to high, and cuts those that reach beyond.
func (t *transaction) setRun(r *ring, low, high, freeAt int64) error {
	first, err := t.runAt(r, low)
	if err != nil {
		return err
	}
	if first.low == low && first.high == high {
		_, err := t.Exec("UPDATE run SET free_at = ? WHERE ring = ? AND low = ?", freeAt, r.id, low)
		return err
	}
	last := first
	if first.high < high {
		if last, err = t.runAt(r, high); err != nil {
			return err
		}
	}
	if first.low < low {
		if _, err := t.Exec("UPDATE run SET high = ? WHERE ring = ? AND low = ?", low-1, r.id, first.low); err != nil {
			return err
		}
	}
	if _, err := t.Exec("DELETE FROM run WHERE ring = ? AND low BETWEEN ? AND ?", r.id, low, high); err != nil {
		return err
	}
	if err := t.insertRun(r, run{low, high, freeAt}); err != nil || last.high <= high {
		return err
	}
	return t.insertRun(r, run{high + 1, last.high, last.freeAt})
}

func (t *transaction) insertRun(r *ring, n run) error {
	_, err := t.Exec("INSERT INTO run (ring, low, high, free_at) VALUES (?, ?, ?, ?)", r.id, n.low, n.high, n.freeAt)
	return err
}

// raise brings the pool's rings up to date after the slot was granted: its end
// was `before` and is `until`, later than that of every record that overlaps.
func (t *transaction) raise(pl *pool, start int64, bitSeq int, before, until int64) error {
	for i := range pl.rings {
		r := &pl.rings[i]
		low, high, ok := r.within(start, bitSeq)
		if !ok {
			continue
		}
		if r.bitSeq > bitSeq {
			if err := t.setInside(r, low, start, bitSeq, before, until); err != nil {
				return err
			}
			at, err := t.runAt(r, low)
			if err != nil {
				return err
			}
			if err := t.setRun(r, low, low, max(at.freeAt, until)); err != nil {
				return err
			}
			continue
		}
		// Every slot in the range was free a moment ago, so all are free again
		// at the same time.
		if err := t.setRun(r, low, high, until); err != nil {
			return err
		}
	}
	return nil
}

// lower brings the pool's rings up to date after the slot's end went from
// `before` down to `until`.
func (t *transaction) lower(pl *pool, start int64, bitSeq int, before, until int64) error {
	for i := range pl.rings {
		r := &pl.rings[i]
		low, high, ok := r.within(start, bitSeq)
		if !ok {
			continue
		}
		if r.bitSeq > bitSeq {
			if err := t.setInside(r, low, start, bitSeq, before, until); err != nil {
				return err
			}
		}
		if err := t.recompute(pl, r, low, high, before); err != nil {
			return err
		}
	}
	return nil
}

// recompute asks the records for the times of the runs in low to high that end
// at `before`. Usually that is one run. It is several when slots of a finer
// layout were granted in between, which takes a clock that jumped ahead. The
// machine IDs of a run share the record that its time comes from.
func (t *transaction) recompute(pl *pool, r *ring, low, high, before int64) error {
	for low <= high {
		at, err := t.runAt(r, low)
		if err != nil {
			return err
		}
		to := min(at.high, high)
		if at.freeAt == before {
			freeAt, err := t.available(pl, r, low)
			if err != nil {
				return err
			}
			if err := t.setRun(r, low, to, freeAt); err != nil {
				return err
			}
		}
		low = to + 1
	}
	return nil
}

// available is what the records say of when the machine ID can be granted: the
// greatest end of those that overlap its slot, 0 if none does.
func (t *transaction) available(pl *pool, r *ring, machineID int64) (freeAt int64, err error) {
	for levels := pl.levels >> r.bitSeq << r.bitSeq; levels != 0; levels &= levels - 1 {
		bitSeq := bits.TrailingZeros64(levels)
		until, err := t.slotUntil(pl, machineID<<r.bitSeq>>bitSeq<<bitSeq, bitSeq)
		if err != nil {
			return 0, err
		}
		freeAt = max(freeAt, until)
	}
	if pl.levels&(1<<r.bitSeq-1) == 0 {
		return freeAt, nil
	}
	var finer int64
	err = t.QueryRow("SELECT until FROM inside WHERE ring = ? AND machine_id = ? ORDER BY until DESC LIMIT 1",
		[]any{r.id, machineID}, &finer)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, err
	}
	return max(freeAt, finer), nil
}

// setInside moves a finer record to its new end among those inside a coarse
// machine ID.
func (t *transaction) setInside(r *ring, machineID, start int64, bitSeq int, before, until int64) error {
	if before != 0 {
		if _, err := t.Exec("DELETE FROM inside WHERE ring = ? AND machine_id = ? AND until = ? AND start = ? AND bit_seq = ?",
			r.id, machineID, before, start, bitSeq); err != nil {
			return err
		}
	}
	_, err := t.Exec("INSERT INTO inside (ring, machine_id, until, start, bit_seq) VALUES (?, ?, ?, ?, ?)",
		r.id, machineID, until, start, bitSeq)
	return err
}

// build makes the runs of a new ring from the pool's records.
//
// Slots are nested or disjoint. In the order of their start, the coarse before
// the fine, a slot comes right after those that contain it, so that a stack
// holds what overlaps the present machine ID. Runs are not merged where their
// times are equal: recompute counts on one record behind each.
func (t *transaction) build(pl *pool, r *ring) error {
	type span struct{ high, freeAt int64 }
	var open []span
	next := r.low // all before it have their run
	emit := func(to, freeAt int64) error {
		if next > to {
			return nil
		}
		n := run{next, to, freeAt}
		next = to + 1
		return t.insertRun(r, n)
	}
	top := func() span {
		if len(open) == 0 {
			return span{high: r.high}
		}
		return open[len(open)-1]
	}
	closeBefore := func(machineID int64) error {
		for len(open) > 0 && top().high < machineID {
			if err := emit(top().high, top().freeAt); err != nil {
				return err
			}
			open = open[:len(open)-1]
		}
		return nil
	}
	records, err := t.endsInOrder(pl)
	if err != nil {
		return err
	}
	t.Keep = t.Keep || len(records) > 0
	for _, rec := range records {
		low, high, ok := r.within(rec.start, rec.bitSeq)
		if !ok {
			continue
		}
		if rec.bitSeq < r.bitSeq {
			if err := t.setInside(r, low, rec.start, rec.bitSeq, 0, rec.until); err != nil {
				return err
			}
		}
		if err := closeBefore(low); err != nil {
			return err
		}
		if err := emit(low-1, top().freeAt); err != nil {
			return err
		}
		open = append(open, span{high, max(top().freeAt, rec.until)})
	}
	if err := closeBefore(r.high + 1); err != nil {
		return err
	}
	return emit(r.high, 0)
}

// recordEnd is as much of a record as build needs.
type recordEnd struct {
	start, until int64
	bitSeq       int
}

func (t *transaction) endsInOrder(pl *pool) ([]recordEnd, error) {
	var all []recordEnd
	err := t.QueryRows("SELECT start, bit_seq, until FROM slot WHERE pool = ? ORDER BY start, bit_seq DESC", []any{pl.id},
		func(scan func(...any) error) error {
			var r recordEnd
			if err := scan(&r.start, &r.bitSeq, &r.until); err != nil {
				return err
			}
			all = append(all, r)
			return nil
		})
	return all, err
}
