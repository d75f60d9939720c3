package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kazahana/kazahana/internal/conn/etcdconn"
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/provider/pool"
	"github.com/kazahana/kazahana/internal/snowflake"
)

const (
	// scanPage is how many records a scan reads at a time, and scanEnough after
	// how many it goes on only until it has found what is asked for. Within so many
	// records after the cursor the order of package pool is kept exactly.
	scanPage   = 256
	scanEnough = 512
	// scanWant is how many free machine IDs a scan looks for beside those that are asked
	// for, and maxQueue how many of those that it has found are kept. Thousands of hosts
	// may start at once, and all but one lose the race for the first one: then a queue is
	// of use that has at least spread.
	scanWant = 512
	spread   = 4096
	maxQueue = 2 * spread
	// maxIncomplete bounds what a scan holds of one machine ID of a coarse
	// layout with many records of finer ones inside.
	maxIncomplete = 1 << 20
)

// queue is machine IDs of a ring that were free when this process looked, best first.
type queue struct {
	ids     []candidate
	levels  []int // that their bases are for
	changes int64 // state.changes and state.done at that time
	done    int64
	madeMS  int64
}

// maxQueueAge is how long a queue is believed. The store may have been restored from a
// backup meanwhile, after which hosts wait longer than this before they grant anything.
const maxQueueAge = time.Minute

// queue is the ring's queue, nil if there is none to believe. mu of the pool is held.
func (a *acquisition) queue(st *state) *queue {
	q := a.pool.queues[a.ring]
	if q == nil || a.now < q.madeMS || a.now-q.madeMS > maxQueueAge.Milliseconds() || st.changes < q.changes {
		return nil
	}
	return q
}

// candidate is a machine ID, and what makes it free.
type candidate struct {
	id int64
	basis
}

// basis is the records that were found to overlap a slot, by their mod
// revisions. A grant rests on these having stayed as they were, rather than on
// nothing having changed since some moment: a change that was missed, for
// whatever reason, is found by the transaction all the same.
type basis struct {
	number  int64   // how many grants of the very same slot came before
	until   int64   // the greatest end of them all
	inside  int64   // the greatest revision of those that start in the slot; 0 for none
	coarser []int64 // of the slot that contains it, for each coarser bit_seq in use
}

// basisOf is the basis of a slot, from marks in order.
func basisOf(marks []mark, key pool.Key, levels []int) basis {
	var b basis
	slot := key.Slot()
	for i, _ := indexOf(marks, pool.Key{Start: slot.Start, BitSeq: snowflake.ValueBits}); i < len(marks) && marks[i].Start < slot.End; i++ {
		b.inside, b.until = max(b.inside, marks[i].rev), max(b.until, marks[i].End)
	}
	if i, found := indexOf(marks, key); found {
		b.number = marks[i].number + 1
	}
	for _, coarser := range key.Coarser(levels) {
		var rev int64
		if i, found := indexOf(marks, coarser); found {
			rev = marks[i].rev
			b.until = max(b.until, marks[i].End)
		}
		b.coarser = append(b.coarser, rev)
	}
	return b
}

func indexOf(marks []mark, key pool.Key) (int, bool) {
	return slices.BinarySearchFunc(marks, key, func(m mark, key pool.Key) int { return m.Key.Compare(key) })
}

// find takes free machine IDs from the ring's queue, which it fills first where it is too
// old or too short. They are this acquire's until it gives them back with free. Its
// FullError is the truth as of the state's revision.
func (a *acquisition) find(ctx context.Context, st *state) ([]candidate, error) {
	select {
	case a.pool.scanning <- struct{}{}:
		defer func() { <-a.pool.scanning }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if a.attempts == 1 && a.inOrder(st) {
		if found := a.take(st, a.need, false); len(found) == a.need {
			return found, nil
		} else if len(found) > 0 {
			a.free(found) // rare: they are found again
		}
	}
	line, marks, err := a.scan(ctx, st)
	if err != nil {
		return nil, err
	}
	a.pool.mu.Lock()
	ids, nextMS, err := a.ring.Choose(line, st.cursor, a.need+maxQueue+len(a.pool.busy), a.now)
	q := &queue{levels: st.levels, changes: st.changes, done: st.done, madeMS: a.now}
	var taken []candidate
	for _, id := range ids {
		c := candidate{id, basisOf(marks, a.ring.Key(id), st.levels)}
		if a.pool.busy[a.ring.Key(id)] {
			taken = append(taken, c)
		} else {
			q.ids = append(q.ids, c)
		}
	}
	if len(q.ids) == 0 {
		q.ids = taken // others of this process are at all that is left; they may fail
	}
	a.pool.queues[a.ring] = q
	a.pool.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case len(ids) == 0:
		return nil, &provider.FullError{Pool: a.terms.Pool, Slots: a.ring.IDs.Count(), NextEndMS: nextMS}
	}
	return a.take(st, a.need, false), nil
}

// inOrder reports whether the ring's queue is in the order that a scan would find: no
// other process has changed a slot since.
func (a *acquisition) inOrder(st *state) bool {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	q := a.queue(st)
	return q != nil && st.changes-q.changes <= a.pool.begun-q.done
}

// take takes up to n machine IDs from the queue: the first ones, or any. The queue may be
// of another time: what was free only by a clock that has been put back is left out.
func (a *acquisition) take(st *state, n int, random bool) (found []candidate) {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	q := a.queue(st)
	if q == nil || !slices.Equal(q.levels, st.levels) {
		return nil
	}
	for len(found) < n && len(q.ids) > 0 {
		if random {
			i := rand.IntN(len(q.ids))
			q.ids[0], q.ids[i] = q.ids[i], q.ids[0]
		}
		c := q.ids[0]
		q.ids = q.ids[1:]
		if c.until <= a.now {
			a.pool.busy[a.ring.Key(c.id)] = true
			found = append(found, c)
		}
	}
	return found
}

// spare is how many machine IDs the queue has.
func (a *acquisition) spare() int {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	if q := a.pool.queues[a.ring]; q != nil {
		return len(q.ids)
	}
	return 0
}

// free gives up machine IDs that this acquire has tried, or does not need.
func (a *acquisition) free(some []candidate) {
	a.pool.mu.Lock()
	defer a.pool.mu.Unlock()
	for _, c := range some {
		delete(a.pool.busy, a.ring.Key(c.id))
	}
}

// scan reads the ring's records from the cursor on, page by page, all as of the
// state's revision, until it has enough. It returns the line where it has read all of
// it, and the marks in order.
func (a *acquisition) scan(ctx context.Context, st *state) (*pool.Line, []mark, error) {
	s := &scanned{ring: a.ring}
	weighAt := 0 // how many records must have been read for the next look at all of them
	for _, part := range a.ring.Parts(st.cursor) {
		coarser, err := a.coarser(ctx, st, part.Low)
		if err != nil {
			return nil, nil, err
		}
		s.marks = append(s.marks, coarser...)
		s.read = append(s.read, provider.IDRange{Low: part.Low, End: part.Low})
		from, to := a.pool.keys.slotsFrom(a.ring.Key(part.Low).Start), a.pool.keys.slotsFrom(a.ring.Key(part.End).Start)
		for next := part.Low; next < part.End; {
			page, more, err := a.p.page(ctx, a.pool.keys, from, to, scanPage, st.rev)
			if err != nil {
				return nil, nil, err
			}
			for _, found := range page {
				s.marks = append(s.marks, found.mark())
			}
			complete := part.End
			if more {
				last := page[len(page)-1].record.key()
				from = a.pool.keys.slot(last) + "\x00"
				complete = last.Start >> a.ring.BitSeq // it may have finer ones that are not read yet
			}
			if complete <= next {
				if len(s.marks) > maxIncomplete {
					return nil, nil, fmt.Errorf("machine ID %d holds more than %d records of finer layouts", next, maxIncomplete)
				}
				continue
			}
			next = complete
			s.read[len(s.read)-1].End = complete
			if len(s.marks) < weighAt {
				continue
			}
			weighAt = 2 * len(s.marks)
			if enough, err := a.enough(s.line(), st.cursor, len(s.marks)); enough || err != nil {
				return s.line(), s.marks, err
			}
		}
	}
	return s.line(), s.marks, nil
}

// enough reports whether a scan can end: it has found so many machine IDs that were
// never granted that nothing comes before them, or looked far enough.
func (a *acquisition) enough(line *pool.Line, cursor int64, records int) (bool, error) {
	want, atMS := a.need+scanWant, int64(0)
	if a.attempts > 1 {
		want = a.need + spread + scanWant
	}
	if records >= scanEnough {
		want, atMS = a.need, a.now
	}
	found, _, err := a.ring.Choose(line, cursor, want, atMS)
	return len(found) == want, err
}

// scanned is what a scan has read: all records of some machine IDs.
type scanned struct {
	ring  pool.Ring
	read  []provider.IDRange // the second one, if any, is before the first
	marks []mark
}

// line puts the marks in order, each once, and makes their line.
func (s *scanned) line() *pool.Line {
	slices.SortFunc(s.marks, compareMarks)
	s.marks = slices.Compact(s.marks)
	var segments []pool.Segment
	for _, r := range slices.Backward(s.read) {
		if r.Count() > 0 {
			whole := pool.Segment{Low: s.ring.Key(r.Low).Start, End: s.ring.Key(r.End).Start, BitSeq: pool.Never}
			segments = append(segments, pool.NewLine(whole, poolMarks(s.marks)).Segments()...)
		}
	}
	return pool.LineOf(segments)
}

// coarser reads the records of slots that contain the machine ID's slot and
// begin before it: a scan that begins in their middle does not come past them.
func (a *acquisition) coarser(ctx context.Context, st *state, id int64) (marks []mark, err error) {
	key := a.ring.Key(id)
	ops := a.pool.keys.containing(key, st.levels, st.rev)
	if len(ops) == 0 {
		return nil, nil
	}
	resp, err := a.p.conn.Commit(ctx, etcdconn.Txn{Then: ops})
	if err != nil {
		return nil, err
	}
	for _, r := range resp.Responses {
		found, err := a.p.slotsOf(a.pool.keys, r.GetResponseRange().Kvs)
		if err != nil {
			return nil, err
		}
		for _, s := range found {
			marks = append(marks, s.mark())
		}
	}
	return marks, nil
}

// containing reads the records of slots that contain this one and begin before it.
func (s space) containing(key pool.Key, levels []int, rev int64) (ops []clientv3.Op) {
	for _, coarser := range key.Coarser(levels) {
		if coarser.Start != key.Start {
			ops = append(ops, clientv3.OpGet(s.slot(coarser), clientv3.WithRev(rev)))
		}
	}
	return ops
}
