package generator

import "slices"

// line holds the requests of one owner that wait, the next one to be served first.
type line struct {
	owner   any
	waiting []*Pending
}

// lines holds the requests that wait, by owner, so that an owner with many requests takes
// no more of a millisecond than one with a single request.
type lines struct {
	turns []*line // the next one to be served first
	by    map[any]*line
	n     int // requests
}

func (l *lines) empty() bool { return l.n == 0 }

// add puts a request behind the others of its owner.
func (l *lines) add(p *Pending) {
	one := l.by[p.req.Owner]
	if one == nil {
		if l.by == nil {
			l.by = map[any]*line{}
		}
		one = &line{owner: p.req.Owner}
		l.by[one.owner] = one
		l.turns = append(l.turns, one)
	}
	one.waiting = append(one.waiting, p)
	l.n++
}

// drop removes the requests for which ends is true.
func (l *lines) drop(ends func(*Pending) bool) {
	l.n = 0
	l.turns = slices.DeleteFunc(l.turns, func(one *line) bool {
		one.waiting = slices.DeleteFunc(one.waiting, ends)
		if l.n += len(one.waiting); len(one.waiting) > 0 {
			return false
		}
		delete(l.by, one.owner)
		return true
	})
}

// remove removes one request, and reports whether it was there.
func (l *lines) remove(p *Pending) bool {
	one := l.by[p.req.Owner]
	if one == nil {
		return false
	}
	at := slices.Index(one.waiting, p)
	if at < 0 {
		return false
	}
	one.waiting = slices.Delete(one.waiting, at, at+1)
	if l.n--; len(one.waiting) == 0 {
		delete(l.by, one.owner)
		at := slices.Index(l.turns, one)
		l.turns = slices.Delete(l.turns, at, at+1)
	}
	return true
}

// next is the request that is served next. There is one.
func (l *lines) next() *Pending { return l.turns[0].waiting[0] }

// served puts the request that was served next behind the others of its owner, if it
// still waits.
func (l *lines) served(waits bool) {
	one := l.turns[0]
	p := one.waiting[0]
	one.waiting[0] = nil
	if one.waiting = one.waiting[1:]; waits {
		one.waiting = append(one.waiting, p)
		return
	}
	l.n--
}

// pass ends the turn of the owner that was served.
func (l *lines) pass() {
	one := l.turns[0]
	l.turns[0] = nil
	if l.turns = l.turns[1:]; len(one.waiting) > 0 {
		l.turns = append(l.turns, one)
		return
	}
	delete(l.by, one.owner)
	if len(l.turns) == 0 {
		l.turns = nil // let the backing array go
	}
}
