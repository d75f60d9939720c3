package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

const (
	// scanPage is how many records a scan reads at a time, and scanEnough how
	// many it reads at most once it has found what is asked for. Within so many
	// records after the cursor the order of package provider is kept exactly.
	scanPage   = 256
	scanEnough = 512
	// spare is how many more free machine IDs are noted than asked for: what
	// those who lose a race go on with.
	spare = 512
	// viewTrust is how often an acquire may find nothing that is really free in
	// a view, before it does without.
	viewTrust = 3
	// maxIncomplete bounds what a scan holds of one machine ID of a coarse
	// layout with many records of finer ones inside.
	maxIncomplete = 1 << 20
)

// candidates is machine IDs to try, best first, and what makes each of them
// free.
type candidates struct {
	ids   []int64
	bases map[int64]basis
}

// basis is the records that were found to overlap a slot, by their mod
// revisions. A grant rests on these having stayed as they were, rather than on
// nothing having changed since some moment: a change that was missed, for
// whatever reason, is found by the transaction all the same.
type basis struct {
	number  int64   // how many grants of the very same slot came before
	inside  int64   // the greatest revision of those that start in the slot; 0 for none
	coarser []int64 // of the slot that contains it, for each coarser bit_seq in use
}

func basisOf(marks []mark, bitSeq int, id int64, levels []int) basis {
	var b basis
	find := func(start int64, level int) (int, bool) {
		return slices.BinarySearchFunc(marks, mark{start: start, bitSeq: level}, compareMarks)
	}
	start, end := id<<bitSeq, (id+1)<<bitSeq
	for i, _ := find(start, snowflake.ValueBits); i < len(marks) && marks[i].start < end; i++ {
		b.inside = max(b.inside, marks[i].rev)
	}
	if i, found := find(start, bitSeq); found {
		b.number = marks[i].number + 1
	}
	for _, level := range levels {
		if level <= bitSeq {
			continue
		}
		var rev int64
		if i, found := find(start>>level<<level, level); found {
			rev = marks[i].rev
		}
		b.coarser = append(b.coarser, rev)
	}
	return b
}

// find looks for n free machine IDs: in the view where there is one that knows
// everything up to the state's last change, else by a scan. What it finds is a
// hint, but for FullError, which is the truth as of the state's revision or
// later.
func (a *acquisition) find(ctx context.Context, st *state, n int) (*candidates, error) {
	r := newRing(a.terms, st.cursor, st.cursorKnown)
	s := newSearch(a.now, int64(n+spare))
	if st.view != nil && a.attempts > viewTrust {
		st.view.end() // it has led astray again and again
	} else if st.view != nil && st.view.reached(ctx, st.last) {
		if c, ok, err := a.lookUp(st, r, s, n); ok {
			return c, err
		}
	}
	marks, err := a.scan(ctx, st, r, s, int64(n))
	if err != nil {
		return nil, err
	}
	return a.choose(st, r, s, marks, n)
}

// lookUp searches the view. It reports whether the view was still there.
func (a *acquisition) lookUp(st *state, r ring, s *search, n int) (c *candidates, ok bool, err error) {
	v := st.view
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended {
		return nil, false, nil
	}
	for _, part := range r.parts() {
		if !runs(v.marks, r.bitSeq, part[0], part[1], s.add) {
			break
		}
	}
	c, err = a.choose(st, r, s, v.marks, n)
	return c, true, err
}

// choose orders what a search found.
func (a *acquisition) choose(st *state, r ring, s *search, marks []mark, n int) (*candidates, error) {
	if len(s.free) == 0 {
		full := &provider.FullError{Pool: a.terms.Pool, Slots: r.ids.Count()}
		if s.nextEnd != math.MaxInt64 {
			full.NextEndMS = s.nextEnd
		}
		return nil, full
	}
	c := &candidates{bases: map[int64]basis{}}
	a.pool.mu.Lock()
	inFlight := 0
	for level, starts := range a.pool.inFlight {
		inFlight += len(starts) << max(level-r.bitSeq, 0) // machine IDs that they overlap
	}
	c.ids = s.inOrder(r.cursor, n+spare, inFlight, func(id int64) bool { return a.pool.isInFlight(id<<r.bitSeq, r.bitSeq) })
	a.pool.mu.Unlock()
	if len(c.ids) == 0 {
		// Others of this process are at all that is left. They may fail.
		c.ids = s.inOrder(r.cursor, n, 0, func(int64) bool { return false })
	}
	for _, id := range c.ids {
		c.bases[id] = basisOf(marks, r.bitSeq, id, st.levels)
	}
	return c, nil
}

// isInFlight reports whether this process is trying to get a slot that overlaps
// this one. It is called with the lock held.
func (pl *pool) isInFlight(start int64, bitSeq int) bool {
	for level, starts := range pl.inFlight {
		if level >= bitSeq {
			if starts[start>>level<<level] {
				return true
			}
			continue
		}
		for other := range starts {
			if other>>bitSeq<<bitSeq == start {
				return true
			}
		}
	}
	return false
}

// scan reads the ring's records from the cursor on, page by page, all as of the
// state's revision, until the search has enough. It returns their marks.
func (a *acquisition) scan(ctx context.Context, st *state, r ring, s *search, need int64) ([]mark, error) {
	var all []mark
	for _, part := range r.parts() {
		next, high := part[0], part[1]
		coarse, err := a.coarser(ctx, st, r, next)
		if err != nil {
			return nil, err
		}
		all = append(all, coarse...)
		pending := coarse
		from := a.pool.keys.slotsFrom(next << r.bitSeq)
		for next <= high {
			page, more, err := a.scanOnce(ctx, st, from, a.pool.keys.slotsFrom((high+1)<<r.bitSeq))
			if err != nil {
				return nil, err
			}
			all, pending = append(all, page...), append(pending, page...)
			complete := high
			if more {
				last := page[len(page)-1]
				from = a.pool.keys.slot(last.start, last.bitSeq) + "\x00"
				complete = last.start>>r.bitSeq - 1
			}
			if complete < next {
				if len(pending) > maxIncomplete {
					return nil, fmt.Errorf("machine ID %d holds more than %d records of finer layouts", next, maxIncomplete)
				}
				continue
			}
			slices.SortFunc(pending, compareMarks)
			goesOn := runs(pending, r.bitSeq, next, complete, s.add)
			if !goesOn || len(all) >= scanEnough && s.never+s.freed >= need {
				return sorted(all), nil
			}
			// What lies beyond is still needed, and what contains it.
			next = complete + 1
			bound := next << r.bitSeq
			pending = slices.DeleteFunc(pending, func(m mark) bool { return m.start+1<<m.bitSeq <= bound })
		}
	}
	return sorted(all), nil
}

func sorted(marks []mark) []mark {
	slices.SortFunc(marks, compareMarks)
	return slices.Compact(marks)
}

// scanOnce reads one page.
func (a *acquisition) scanOnce(ctx context.Context, st *state, from, to string) (page []mark, more bool, err error) {
	var resp *clientv3.GetResponse
	err = a.p.conn.Call(ctx, func(ctx context.Context) (err error) {
		resp, err = a.p.conn.KV.Get(ctx, from, clientv3.WithRange(to), clientv3.WithLimit(scanPage), clientv3.WithRev(st.rev))
		return err
	})
	if err != nil {
		return nil, false, err
	}
	page, err = marksOf(a.pool.keys, resp.Kvs)
	return page, resp.More && len(page) > 0, err
}

func marksOf(keys space, kvs []*mvccpb.KeyValue) ([]mark, error) {
	marks := make([]mark, 0, len(kvs))
	for _, kv := range kvs {
		m, err := markOf(keys, kv.Key, kv.Value, kv.ModRevision)
		if err != nil {
			return nil, err
		}
		marks = append(marks, m)
	}
	return marks, nil
}

// coarser reads the records of slots that contain the machine ID's slot and
// begin before it: a scan that begins in their middle does not come past them.
func (a *acquisition) coarser(ctx context.Context, st *state, r ring, id int64) ([]mark, error) {
	start := id << r.bitSeq
	var ops []clientv3.Op
	for _, level := range st.levels {
		if level > r.bitSeq && start>>level<<level != start {
			ops = append(ops, clientv3.OpGet(a.pool.keys.slot(start>>level<<level, level), clientv3.WithRev(st.rev)))
		}
	}
	if len(ops) == 0 {
		return nil, nil
	}
	var resp *clientv3.TxnResponse
	err := a.p.conn.Call(ctx, func(ctx context.Context) (err error) {
		resp, err = a.p.conn.KV.Txn(ctx).Then(ops...).Commit()
		return err
	})
	if err != nil {
		return nil, err
	}
	var marks []mark
	for _, r := range resp.Responses {
		found, err := marksOf(a.pool.keys, r.GetResponseRange().Kvs)
		if err != nil {
			return nil, err
		}
		marks = append(marks, found...)
	}
	return marks, nil
}

// eachSlot calls f for the records of the pool, as of one revision, which it
// returns in rev, in the order of their keys, until f returns false.
func (p *Provider) eachSlot(ctx context.Context, keys space, rev *int64, f func(*mvccpb.KeyValue) (bool, error)) error {
	from := keys.base + "slot/"
	to := after(from)
	for {
		var resp *clientv3.GetResponse
		err := p.conn.Call(ctx, func(ctx context.Context) (err error) {
			resp, err = p.conn.KV.Get(ctx, from, clientv3.WithRange(to), clientv3.WithLimit(viewPage), clientv3.WithRev(*rev))
			return err
		})
		if errors.Is(err, rpctypes.ErrCompacted) {
			return fmt.Errorf("%w; try again", err)
		}
		if err != nil {
			return err
		}
		if *rev == 0 {
			*rev = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			goOn, err := f(kv)
			if err != nil {
				return fmt.Errorf("%s: %w", p.cfg.Place(), err)
			}
			if !goOn {
				return nil
			}
		}
		if !resp.More || len(resp.Kvs) == 0 {
			return nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}
