package daemon

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kazahana/kazahana/internal/record"
)

// A slow request waits for more than IDs: for a store, or for another holder to free a
// lock. It is answered beside the connection's other requests, which may overtake it.

// errLater: the answer comes later, from the work that aside was given.
var errLater = errors.New("the request is answered later")

// slowWork finds the answer of a slow request. When ctx is done it returns soon, and no peer
// hears the answer.
type slowWork func(ctx context.Context) (answer any, err error)

// slowRequests are those of a connection. Its mu guards them.
type slowRequests struct {
	next    slowWork // of the present request
	upkeep  bool     // it is for the upkeep of a lock
	n       int      // under way
	running sync.WaitGroup
	turn    chan struct{} // has room for the long answer that is made or written; nil: there was none yet
	isLong  bool          // the present request wants a long answer
	long    int           // such requests under way
	onClose []func()      // gives back all that the peer holds while the connection lasts
}

func (r *slowRequests) rest() bool { return r.n == 0 && len(r.onClose) == 0 }

// aside lets work answer for a method, which must not use the connection's
// request: the next one takes its place. The method returns what aside does.
func (d *responder) aside(work slowWork) error { return d.later(work, false) }

// asideUpkeep is aside for the upkeep of a lock: it is never refused.
func (d *responder) asideUpkeep(work slowWork) error { return d.later(work, true) }

func (d *responder) later(work slowWork, upkeep bool) error {
	if d.conn == nil {
		return errHeavy
	}
	d.conn.slow.next, d.conn.slow.upkeep = work, upkeep
	return errLater
}

// asideWithin is aside for work that may take so long.
func (d *responder) asideWithin(timeout time.Duration, work slowWork) error {
	return d.aside(work.within(timeout))
}

func (work slowWork) within(timeout time.Duration) slowWork {
	return func(ctx context.Context) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return work(ctx)
	}
}

// answerLater begins a slow request.
func (s *Server) answerLater(ctx context.Context, c *conn, m *countedMethod, began time.Duration) {
	id, work, isLong := c.req.ID, c.slow.next, c.slow.isLong
	c.slow.next, c.slow.isLong = nil, false
	alone, done, err := c.countSlow()
	if err != nil {
		c.settle(id, m, began, err)
		return
	}
	c.slow.n++
	if isLong {
		alone = alone || c.slow.long > 0 // a peer that does not read makes no more goroutines
		c.slow.long++
	}
	traced := func(string) {}
	if s.cfg.Trace != nil {
		ctx, traced = s.cfg.Trace(ctx, m.name)
	}
	ctx = c.account.user.pays(ctx)
	find := func() {
		record.MakeRoom()
		answer, err := work(ctx)
		done()
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.slow.n--
		if isLong {
			c.slow.long--
		}
		if long, ok := answer.(longAnswer); ok {
			c.writeLong(long)
		} else if err == nil {
			err = c.wire.ReplyAny(id, answer)
		}
		c.settle(id, m, began, err)
		traced(codeOf(err))
		_ = c.wire.Flush() // if it fails, the peer is gone, and reading ends too
	}
	if !alone {
		c.slow.running.Go(find)
		return
	}
	_ = c.wire.Flush() // likewise
	c.waiting.Store(true)
	defer c.waiting.Store(false)
	c.mu.Unlock()
	defer c.mu.Lock()
	find()
}

// countSlow counts the present request, unless there are too many. alone reports that its connection
// is to wait with it.
func (c *conn) countSlow() (alone bool, done func(), err error) {
	if c.slow.upkeep {
		if !c.account.keepsUp() {
			return true, func() {}, nil
		}
		return false, c.account.doneKeepingUp, nil
	}
	bytes, refusal := c.account.waits(0)
	if refusal != nil {
		return false, nil, refusal
	}
	return false, func() { c.account.doneWaiting(bytes) }, nil
}

// whileServing ends ctx when the daemon begins to stop: waiting callers hear so at once. done is
// to be called at the end.
func (s *Server) whileServing(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.leaving, func() { cancel(errShuttingDown) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// codeOf is the code of the answer that err makes, "" for none.
func codeOf(err error) string {
	if err == nil {
		return "ok"
	}
	if errors.Is(err, errHungUp) {
		return ""
	}
	if e := asWireError(err); e != nil {
		return string(e.Code)
	}
	return string(codeInternal)
}

// attach is atEnd for slow work.
func (c *conn) attach(done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.atEnd(done)
}

// atEnd keeps the connection from the fast path, and has done called when it ends,
// however it does. mu is held.
func (c *conn) atEnd(done func()) { c.slow.onClose = append(c.slow.onClose, done) }

// notify sends a notice that the peer has asked for.
func (c *conn) notify(method string, params ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.wire.Notify(method, params...); err != nil {
		panic("daemon: a notification cannot be encoded: " + err.Error())
	}
	_ = c.wire.Flush()
}

// request asks the peer for something that it has offered. flush sends it.
func (c *conn) request(id uint32, method string, params any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.wire.Request(id, method, params); err != nil {
		panic("daemon: a request cannot be encoded: " + err.Error())
	}
}

func (c *conn) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.wire.Flush() // if it fails, the peer is gone, and reading ends too
}

// outlast waits, after the peer's last request, for the slow ones to be answered.
func (c *conn) outlast() {
	if c.slow.n == 0 {
		return
	}
	c.waiting.Store(true) // from now on a goroutine looks whether the peer is there
	if hungUp(c.net) {
		c.abandon(errHungUp)
	}
	c.mu.Unlock()
	defer c.mu.Lock()
	c.slow.running.Wait()
}

// close ends the connection, and what its peer held by it. mu is held, and left
// for good.
func (c *conn) close() {
	if c.slow.n > 0 {
		c.abandon(errHungUp)
	}
	if c.broken {
		_ = c.wire.Flush() // lets go of the buffer
	}
	c.mu.Unlock()
	c.slow.running.Wait()
	for _, done := range c.slow.onClose {
		done()
	}
	_ = c.net.Close()
}
