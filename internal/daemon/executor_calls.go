package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/placement/driver"
	"github.com/kazahana/kazahana/internal/wire"
)

// callWindow is how many requests a peer may have without having answered. A crowd
// of them waits here, where its time does not run as long as the peer answers at all.
const callWindow = 256

// pingTime is for the answer to Ping, which a peer gets when it has let the time of another
// request go by: it may be slow with that alone, or the daemon itself may have stood still.
const pingTime = time.Second

// maxRefusal is how many bytes of a peer's error others are told.
const maxRefusal = 1024

// calls are requests to a peer. They are sent in their order by a goroutine of
// their own, since a peer that does not read must keep no other waiting.
type executorCalls struct {
	conn *conn
	more chan struct{} // something may be sent; has room for one
	hear func()        // silent has changed

	mu       sync.Mutex // guards all below
	last     uint32
	unsent   []*executorCall
	waiting  map[uint32]*executorCall // for their answers, the unsent ones included
	window   int                      // of them are sent
	closed   error
	answered uint64 // answers so far
	pinged   bool   // a Ping is under way
	silent   bool   // the peer has let the time of a request and of a Ping go by, and answered nothing since
}

// call is one of them.
type executorCall struct {
	method string
	params any
	target any // of the answer
	within time.Duration
	wanted func() bool // asked right before it is sent; nil: it is
	useful bool        // also when it is sent after its time
	prompt bool        // it goes before all others, and its time runs from now on
	done   func(error)

	id    uint32
	sent  bool
	due   time.Time // once it is sent
	timer *time.Timer
}

// errNotAsked: the peer knows nothing of the request.
var errNotAsked = errors.New("the process was not asked: when its turn came it was not wanted any more")

func newExecutorCalls(c *conn, hear func()) *executorCalls {
	a := &executorCalls{conn: c, more: make(chan struct{}, 1), hear: hear, waiting: map[uint32]*executorCall{}}
	go a.send()
	return a
}

// ask sends a request, and has its done called when its answer is in target, or there
// is none within the time after it was sent.
//
// Errors: the peer's refusal; the reason of close; errNotAsked; an error that wraps
// driver.ErrUnknown where the peer may still carry it out.
func (a *executorCalls) ask(one *executorCall) {
	a.mu.Lock()
	if refused := a.closed; refused != nil {
		a.mu.Unlock()
		one.done(refused)
		return
	}
	a.last++
	one.id = a.last
	a.waiting[one.id] = one
	one.timer = time.AfterFunc(one.within, func() { a.late(one) })
	at := len(a.unsent)
	if one.prompt {
		at = 0
	}
	a.unsent = slices.Insert(a.unsent, at, one)
	a.prod()
	a.mu.Unlock()
}

// prod wakes the sender. mu is held, and calls are not closed.
func (a *executorCalls) prod() {
	select {
	case a.more <- struct{}{}:
	default:
	}
}

// send sends the questions, until close.
func (a *executorCalls) send() {
	for range a.more {
		for one := a.next(); one != nil; one = a.next() {
			if one.wanted != nil && !one.wanted() {
				if a.take(one.id) != nil {
					one.done(errNotAsked)
				}
				continue
			}
			a.conn.request(one.id, one.method, one.params)
		}
		a.conn.flush()
	}
}

// next returns the call to send now. It leaves out an abandoned one, unless the peer has to hear
// of it.
func (a *executorCalls) next() *executorCall {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.unsent) > 0 && (a.window < callWindow || a.unsent[0].prompt) {
		one := a.unsent[0]
		a.unsent = a.unsent[1:]
		if a.waiting[one.id] != nil {
			one.sent, one.due = true, time.Now().Add(one.within)
			a.window++
			one.timer.Reset(one.within)
			return one
		}
		if one.useful {
			return one
		}
	}
	if len(a.unsent) == 0 {
		a.unsent = nil // lets go of its memory
	}
	return nil
}

// take ends the wait for an answer, and returns the waiting call, nil for none.
func (a *executorCalls) take(id uint32) *executorCall {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.waiting[id]
	if one == nil {
		return nil
	}
	one.timer.Stop()
	delete(a.waiting, id)
	if one.sent {
		a.window--
		a.prod()
	}
	return one
}

// late is when the time of a call is over.
func (a *executorCalls) late(one *executorCall) {
	a.mu.Lock()
	left := time.Until(one.due) // the timer may have fired just when it was sent
	if !one.sent && !one.prompt && !a.silent {
		left = one.within // the peer is busy with those before it
	}
	if a.waiting[one.id] != nil && left > 0 {
		one.timer.Reset(left)
		a.mu.Unlock()
		return
	}
	a.mu.Unlock()
	if a.take(one.id) != nil {
		a.ping(min(one.within, pingTime))
		one.done(fmt.Errorf("%w: the process has not answered %s within %v", driver.ErrUnknown, one.method, one.within))
	}
}

// ping asks the peer whether it is there. Any answer says so, also that it does not know
// what a Ping is. It is sent even after its time: only an answer ends the silence.
func (a *executorCalls) ping(within time.Duration) {
	a.mu.Lock()
	already, before := a.pinged || a.silent, a.answered
	if !already {
		a.pinged = true
	}
	a.mu.Unlock()
	if already {
		return
	}
	var pong any
	a.ask(&executorCall{method: "Ping", params: struct{}{}, target: &pong, within: within, prompt: true, useful: true, done: func(err error) {
		a.mu.Lock()
		a.pinged = false
		late := errors.Is(err, driver.ErrUnknown) && a.answered == before
		a.silent = a.silent || late
		a.mu.Unlock()
		if late {
			a.hear()
		}
	}})
}

// answers notes that the peer does.
func (a *executorCalls) answers() {
	a.mu.Lock()
	changed := a.silent
	a.silent = false
	a.answered++
	a.mu.Unlock()
	if changed {
		a.hear()
	}
}

// isSilent reports whether the peer has let the time of a request and of a Ping go by, and
// has answered nothing since.
func (a *executorCalls) isSilent() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.silent
}

// answer takes a response of the peer. It ignores a response without a waiting call.
func (a *executorCalls) answer(r *wire.Request) {
	a.answers()
	one := a.take(r.ID)
	if one == nil {
		return
	}
	err := r.Answer(one.target)
	if failure := (*wire.Error)(nil); errors.As(err, &failure) {
		err = refusal(failure)
	} else if err != nil {
		err = fmt.Errorf("%w: the process answers %s with what cannot be read: %w", driver.ErrUnknown, one.method, err)
	}
	one.done(err)
}

// refusal is a peer's error as others are told of it: not longer than they can
// bear, since it is kept with events, and not with a code that is the daemon's.
func refusal(failure *wire.Error) error {
	text := failure.Error()
	return errors.New(strings.ToValidUTF8(text[:min(len(text), maxRefusal)], "\uFFFD"))
}

// close answers all waiting calls, and all later ones.
func (a *executorCalls) close(why error) {
	a.mu.Lock()
	waiting := a.waiting
	a.waiting, a.unsent, a.closed = map[uint32]*executorCall{}, nil, why
	a.window = 0
	close(a.more)
	a.mu.Unlock()
	for _, one := range waiting {
		one.timer.Stop()
		one.done(why)
	}
}
