package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/snowflake"
)

const (
	// scanPage is how many records a scan reads at a time, and scanEnough after
	// how many it goes on only until it has found what is asked for. Within so many
	// records after the cursor the order of package provider is kept exactly.
	scanPage   = 256
	scanEnough = 512
	// scanSpare and viewSpare are how many more free machine IDs are noted than
	// asked for: what those who lose a race go on with. Thousands of hosts may start
	// at once, each with a scan; processes with a view are few.
	scanSpare = 8192
	viewSpare = 512
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

// basisOf is the basis of a slot, from marks in order.
func basisOf(marks []mark, key pool.Key, levels []int) basis {
	var b basis
	slot := key.Slot()
	for i, _ := indexOf(marks, pool.Key{Start: slot.Start, BitSeq: snowflake.ValueBits}); i < len(marks) && marks[i].Start < slot.End; i++ {
		b.inside = max(b.inside, marks[i].rev)
	}
	if i, found := indexOf(marks, key); found {
		b.number = marks[i].number + 1
	}
	for _, coarser := range key.Coarser(levels) {
		var rev int64
		if i, found := indexOf(marks, coarser); found {
			rev = marks[i].rev
		}
		b.coarser = append(b.coarser, rev)
	}
	return b
}

func indexOf(marks []mark, key pool.Key) (int, bool) {
	return slices.BinarySearchFunc(marks, key, func(m mark, key pool.Key) int { return m.Key.Compare(key) })
}

// find looks for n free machine IDs: in the view where there is one that knows
// everything up to the state's last change, else by a scan. What it finds is a
// hint, but for FullError, which is the truth as of the state's revision or
// later.
func (a *acquisition) find(ctx context.Context, st *state, n int) (*candidates, error) {
	if st.view != nil && a.attempts > viewTrust {
		st.view.end() // it has led astray again and again
	} else if st.view != nil && st.view.reached(ctx, st.last) {
		if c, ok, err := a.lookUp(st, n); ok {
			return c, err
		}
	}
	line, marks, err := a.scan(ctx, st, n)
	if err != nil {
		return nil, err
	}
	return a.choose(st, line, marks, n, scanSpare)
}

// lookUp searches the view. It reports whether the view was still there.
func (a *acquisition) lookUp(st *state, n int) (c *candidates, ok bool, err error) {
	v := st.view
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended {
		return nil, false, nil
	}
	c, err = a.choose(st, v.line, v.marks, n, viewSpare)
	return c, true, err
}

// choose picks candidates from the line that the marks make.
func (a *acquisition) choose(st *state, line *pool.Line, marks []mark, n, spare int) (*candidates, error) {
	a.pool.mu.Lock()
	inFlight := 0
	for level, starts := range a.pool.inFlight {
		inFlight += len(starts) << max(level-a.ring.BitSeq, 0) // machine IDs that they overlap
	}
	all, nextMS, err := a.ring.Choose(line, st.cursor, n+spare+inFlight, a.now)
	c := &candidates{bases: map[int64]basis{}}
	for _, id := range all {
		if len(c.ids) < n+spare && !a.pool.isInFlight(a.ring.Key(id)) {
			c.ids = append(c.ids, id)
		}
	}
	a.pool.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case len(all) == 0:
		return nil, &provider.FullError{Pool: a.terms.Pool, Slots: a.ring.IDs.Count(), NextEndMS: nextMS}
	case len(c.ids) == 0:
		c.ids = all[:min(n, len(all))] // others of this process are at all that is left; they may fail
	}
	for _, id := range c.ids {
		c.bases[id] = basisOf(marks, a.ring.Key(id), st.levels)
	}
	return c, nil
}

// isInFlight reports whether this process is trying to get a slot that overlaps
// this one. It is called with the lock held.
func (pl *knownPool) isInFlight(key pool.Key) bool {
	for level, starts := range pl.inFlight {
		if level >= key.BitSeq {
			if starts[key.Start>>level<<level] {
				return true
			}
			continue
		}
		for other := range starts {
			if key.Slot().Overlaps(pool.Key{Start: other, BitSeq: level}.Slot()) {
				return true
			}
		}
	}
	return false
}

// stretch is machine IDs of a ring, both bounds included, that a scan has read
// completely.
type stretch struct{ low, high int64 }

// scan reads the ring's records from the cursor on, page by page, all as of the
// state's revision, until it has enough for n leases. It returns their marks, and
// the line where it has read all of it.
func (a *acquisition) scan(ctx context.Context, st *state, n int) (*pool.Line, []mark, error) {
	var all []mark
	var read []stretch
	weighAt := 0 // how many records must have been read for the next look at all of them
	for _, part := range a.ring.Parts(st.cursor) {
		next, high := part.Low, part.End-1
		coarse, err := a.coarser(ctx, st, next)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, coarse...)
		from := a.pool.keys.slotsFrom(next << a.ring.BitSeq)
		read = append(read, stretch{next, next - 1})
		for next <= high {
			page, more, err := a.scanOnce(ctx, st, from, a.pool.keys.slotsFrom((high+1)<<a.ring.BitSeq))
			if err != nil {
				return nil, nil, err
			}
			all = append(all, page...)
			complete := high
			if more {
				last := page[len(page)-1]
				from = a.pool.keys.slot(last.Key) + "\x00"
				complete = last.Start>>a.ring.BitSeq - 1
			}
			if complete < next {
				if len(all) > maxIncomplete {
					return nil, nil, fmt.Errorf("machine ID %d holds more than %d records of finer layouts", next, maxIncomplete)
				}
				continue
			}
			next = complete + 1
			read[len(read)-1].high = complete
			if len(all) < weighAt {
				continue
			}
			weighAt = 2 * len(all)
			line, marks, enough, err := a.weigh(st, all, read, n)
			if enough || err != nil {
				return line, marks, err
			}
		}
	}
	marks := sorted(all)
	return a.lineOf(marks, read), marks, nil
}

// weigh looks at all that a scan has read: at the line that it makes, and whether
// that is enough. It takes as long as there are records, and so a scan does it only
// when they have doubled.
func (a *acquisition) weigh(st *state, all []mark, read []stretch, n int) (line *pool.Line, marks []mark, enough bool, err error) {
	if err := a.p.at(stepWeighing); err != nil {
		return nil, nil, false, err
	}
	marks = sorted(all)
	line = a.lineOf(marks, read)
	enough, err = a.enough(line, st.cursor, n, len(all))
	return line, marks, enough, err
}

// lineOf is the line under the stretches. The second one, if any, is before the
// first.
func (a *acquisition) lineOf(marks []mark, read []stretch) *pool.Line {
	var segments []pool.Segment
	for _, s := range slices.Backward(read) {
		if s.low <= s.high {
			whole := pool.Segment{Low: s.low << a.ring.BitSeq, End: (s.high + 1) << a.ring.BitSeq, BitSeq: pool.Never}
			segments = append(segments, pool.NewLine(whole, poolMarks(marks)).Segments()...)
		}
	}
	return pool.LineOf(segments)
}

// enough reports whether a scan can end: it has found so many machine IDs that were
// never granted that nothing comes before them, or looked far enough.
func (a *acquisition) enough(line *pool.Line, cursor int64, n, records int) (bool, error) {
	want, atMS := n+viewSpare, int64(0)
	if records >= scanEnough {
		want, atMS = n, a.now
	}
	found, _, err := a.ring.Choose(line, cursor, want, atMS)
	return len(found) == want, err
}

// sorted puts marks in order, each once.
func sorted(marks []mark) []mark {
	marks = slices.Clone(marks)
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
func (a *acquisition) coarser(ctx context.Context, st *state, id int64) ([]mark, error) {
	key := a.ring.Key(id)
	var ops []clientv3.Op
	for _, coarser := range key.Coarser(st.levels) {
		if coarser.Start != key.Start {
			ops = append(ops, clientv3.OpGet(a.pool.keys.slot(coarser), clientv3.WithRev(st.rev)))
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
