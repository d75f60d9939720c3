package daemon

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/placement/driver"
	"github.com/kazahana/kazahana/internal/wire"
)

// calls are requests to a peer. They are sent in their order by a goroutine of
// their own, since a peer that does not read must keep nobody waiting.
type calls struct {
	conn *conn
	more chan struct{} // there is something to send; has room for one

	mu      sync.Mutex // guards all below
	last    uint32
	unsent  []*call
	waiting map[uint32]*call
	closed  error
}

// call is one of them.
type call struct {
	id     uint32
	method string
	params any
	target any // of the answer
	done   func(error)
	timer  *time.Timer
}

func newCalls(c *conn) *calls {
	a := &calls{conn: c, more: make(chan struct{}, 1), waiting: map[uint32]*call{}}
	go a.send()
	return a
}

// ask sends a request, and has done called when its answer is in target, or there
// is none within the time.
//
// Errors: the peer's, which is a *wire.Error; what close was given; one that wraps
// driver.ErrUnknown where the peer may still carry it out.
func (a *calls) ask(method string, params, target any, within time.Duration, done func(error)) {
	a.mu.Lock()
	if closed := a.closed; closed != nil {
		a.mu.Unlock()
		done(closed)
		return
	}
	a.last++
	one := &call{id: a.last, method: method, params: params, target: target, done: done}
	a.waiting[one.id] = one
	one.timer = time.AfterFunc(within, func() { a.late(one, within) })
	a.unsent = append(a.unsent, one)
	select {
	case a.more <- struct{}{}:
	default:
	}
	a.mu.Unlock()
}

// send sends what is asked, until close.
func (a *calls) send() {
	for range a.more {
		for one := a.next(); one != nil; one = a.next() {
			a.conn.request(one.id, one.method, one.params)
		}
		a.conn.flush()
	}
}

// next is what is to be sent now. What nobody waits for any more is not: the peer
// would do it after what it was asked later.
func (a *calls) next() *call {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.unsent) > 0 {
		one := a.unsent[0]
		a.unsent = a.unsent[1:]
		if a.waiting[one.id] != nil {
			return one
		}
	}
	a.unsent = nil // lets go of what it grew to
	return nil
}

// take ends the wait for an answer, and reports whether somebody waited.
func (a *calls) take(id uint32) *call {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.waiting[id]
	delete(a.waiting, id)
	return one
}

func (a *calls) late(one *call, within time.Duration) {
	if a.take(one.id) != nil {
		one.done(fmt.Errorf("%w: the process has not answered %s within %v", driver.ErrUnknown, one.method, within))
	}
}

// answer takes a response of the peer. One that nobody waits for is ignored.
func (a *calls) answer(r *wire.Request) {
	one := a.take(r.ID)
	if one == nil {
		return
	}
	one.timer.Stop()
	err := r.Answer(one.target)
	if failure := (*wire.Error)(nil); err != nil && !errors.As(err, &failure) {
		err = fmt.Errorf("%w: the process answers %s with what cannot be read: %w", driver.ErrUnknown, one.method, err)
	}
	one.done(err)
}

// close answers all that wait, and whoever asks from now on.
func (a *calls) close(why error) {
	a.mu.Lock()
	waiting := a.waiting
	a.waiting, a.unsent, a.closed = map[uint32]*call{}, nil, why
	close(a.more)
	a.mu.Unlock()
	for _, one := range waiting {
		one.timer.Stop()
		one.done(why)
	}
}
