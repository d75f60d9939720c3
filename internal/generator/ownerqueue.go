package generator

import "slices"

// ownersRequests are the waiting requests of one owner, the next one to be served first.
type ownersRequests struct {
	owner   any
	waiting []*Pending
}

// ownerQueue holds the requests that wait, by owner, so that an owner with many requests takes
// no more of a millisecond than one with a single request.
type ownerQueue struct {
	turns []*ownersRequests // the next one to be served first
	by    map[any]*ownersRequests
	n     int // requests
}

func (q *ownerQueue) empty() bool { return q.n == 0 }

// add puts a request behind the others of its owner.
func (q *ownerQueue) add(p *Pending) {
	one := q.by[p.req.Owner]
	if one == nil {
		if q.by == nil {
			q.by = map[any]*ownersRequests{}
		}
		one = &ownersRequests{owner: p.req.Owner}
		q.by[one.owner] = one
		q.turns = append(q.turns, one)
	}
	one.waiting = append(one.waiting, p)
	q.n++
}

// drop removes the requests for which ends is true.
func (q *ownerQueue) drop(ends func(*Pending) bool) {
	q.n = 0
	q.turns = slices.DeleteFunc(q.turns, func(one *ownersRequests) bool {
		one.waiting = slices.DeleteFunc(one.waiting, ends)
		if q.n += len(one.waiting); len(one.waiting) > 0 {
			return false
		}
		delete(q.by, one.owner)
		return true
	})
}

// remove removes one request, and reports whether it was there.
func (q *ownerQueue) remove(p *Pending) bool {
	one := q.by[p.req.Owner]
	if one == nil {
		return false
	}
	at := slices.Index(one.waiting, p)
	if at < 0 {
		return false
	}
	one.waiting = slices.Delete(one.waiting, at, at+1)
	if q.n--; len(one.waiting) == 0 {
		delete(q.by, one.owner)
		at := slices.Index(q.turns, one)
		q.turns = slices.Delete(q.turns, at, at+1)
	}
	return true
}

// next is the request that is served next. There is one.
func (q *ownerQueue) next() *Pending { return q.turns[0].waiting[0] }

// served puts the request that was served next behind the others of its owner, if it
// still waits.
func (q *ownerQueue) served(waits bool) {
	one := q.turns[0]
	p := one.waiting[0]
	one.waiting[0] = nil
	if one.waiting = one.waiting[1:]; waits {
		one.waiting = append(one.waiting, p)
		return
	}
	q.n--
}

// pass ends the turn of the owner that was served.
func (q *ownerQueue) pass() {
	one := q.turns[0]
	q.turns[0] = nil
	if q.turns = q.turns[1:]; len(one.waiting) > 0 {
		q.turns = append(q.turns, one)
		return
	}
	delete(q.by, one.owner)
	if len(q.turns) == 0 {
		q.turns = nil // let the backing array go
	}
}
