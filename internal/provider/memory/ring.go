package memory

import (
	"github.com/kazahana/kazahana/internal/provider"
	"github.com/kazahana/kazahana/internal/snowflake"
)

// ring is the machine IDs that some terms grant from.
type ring struct {
	layout snowflake.Layout
	ids    provider.IDRange
	cursor int64 // assigned last
	ends   *ends // by machine ID, also those that are not in ids
}

// ring is the one that the terms grant from. A new one begins at its lowest
// machine ID, so that tests can count on it.
func (pl *pool) ring(t provider.Terms) *ring {
	key := ringKey{t.BitSeq, t.Range()}
	r, ok := pl.rings[key]
	if !ok {
		r = &ring{layout: t.Layout(), ids: t.Range(), cursor: t.Range().End - 1}
		pl.rings[key] = r
		for _, old := range pl.records {
			pl.refresh(r, old)
		}
	}
	return r
}

// setEnd changes when a record's slot can be granted again.
func (pl *pool) setEnd(r *record, end int64) {
	r.end = end
	for _, ring := range pl.rings {
		pl.refresh(ring, r)
	}
}

// refresh looks at a record that has changed. A coarser one is an end of several
// machine IDs of the ring; finer ones together are the end of a single one.
func (pl *pool) refresh(r *ring, changed *record) {
	slot, size := changed.lease.Slot(), r.layout.Throughput()
	i, count, end := slot.Start/size, slot.Size()/size, changed.end
	if count <= 1 {
		count, end = 1, pl.end(r.layout.Slot(i))
	}
	r.ends = r.ends.set(r.layout.MachineIDs(), i, count, end)
}

// choose returns the machine ID with the least (end, distance from the cursor).
func (r *ring) choose() (id, end int64) {
	n, from, to := r.layout.MachineIDs(), r.ids.Low, r.ids.End
	end = r.ends.least(n, from, to)
	if id = r.ends.first(n, r.cursor+1, to, end); id < 0 {
		id = r.ends.first(n, from, to, end)
	}
	return id, end
}

// ends is when each of n slots, a power of two, can be granted, as a tree that
// knows the least of each half. nil is zero for all of them.
type ends struct {
	own         int64 // of all n at least
	all         int64 // the least of the n
	left, right *ends
}

// set changes the end of count slots from i on, which are one node of the tree.
func (e *ends) set(n, i, count, end int64) *ends {
	if e == nil {
		e = &ends{}
	}
	half := n / 2
	switch {
	case n == count:
		e.own = end
	case i < half:
		e.left = e.left.set(half, i, count, end)
	default:
		e.right = e.right.set(half, i-half, count, end)
	}
	e.all = max(e.own, min(e.left.least(half, 0, half), e.right.least(half, 0, half)))
	return e
}

// least is the least end of the slots from, ..., to-1.
func (e *ends) least(n, from, to int64) int64 {
	half := n / 2
	switch {
	case e == nil:
		return 0
	case from <= 0 && to >= n:
		return e.all
	case to <= half:
		return max(e.own, e.left.least(half, from, to))
	case from >= half:
		return max(e.own, e.right.least(half, from-half, to-half))
	}
	return max(e.own, min(e.left.least(half, from, to), e.right.least(half, from-half, to-half)))
}

// first is the first of the slots from, ..., to-1 whose end is at most limit;
// -1 if there is none.
func (e *ends) first(n, from, to, limit int64) int64 {
	from, to = max(from, 0), min(to, n)
	if from >= to || e != nil && e.all > limit {
		return -1
	}
	if e == nil || n == 1 {
		return from
	}
	half := n / 2
	if i := e.left.first(half, from, to, limit); i >= 0 {
		return i
	}
	if i := e.right.first(half, from-half, to-half, limit); i >= 0 {
		return half + i
	}
	return -1
}
