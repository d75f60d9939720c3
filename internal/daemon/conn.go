package daemon

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/wire"
)

// stream is the part of a *net.UnixConn that a connection needs.
type stream interface {
	io.ReadWriteCloser
	socket
	syscall.Conn
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// conn is one connection, served by one goroutine. Slow requests have others,
// which answer beside it.
type conn struct {
	responder
	net  stream
	wire *wire.ServerConn
	// mu guards the answers: the outbox of wire, the bytes being written, and slow. The
	// serving goroutine holds it, except while it waits: for the peer, or for IDs.
	mu sync.Mutex
	unfinished
	mayPark bool // on the fast path, when nothing is under way
	handed  bool // to the fast path, with its account; guarded by Server.mu

	until    time.Time // the write deadline as set
	turned   bool      // the connection is being turned away, by a deadline of its own
	end      MessageEnd
	broken   bool // a write failed: no peer hears the answers
	farewell bool // the bytes being written say why the connection ends

	waiting atomic.Bool             // for IDs, or for slow requests after the last
	abandon context.CancelCauseFunc // ends that wait
	slow    slowRequests
	watch   *watch // of the events of placement; nil: there is none now
	watched bool   // there was one: the end of the connection ends the present one
}

// unfinished is the work of a connection that leaves the fast path.
type unfinished struct {
	input  []byte // not yet handled
	output []byte // not yet sent
	waits  *waiting
}

func newConn(s *Server, nc stream, a *account) *conn {
	c := &conn{net: nc}
	c.wire = wire.NewServerConn((*patientReader)(c), (*patientWriter)(c))
	c.wire.SetMemory(a)
	c.responder = responder{server: s, conn: c, account: a, out: &c.wire.Outbox}
	return c
}

// patientReader waits for ever for a message to begin, and not for ever for
// its end: half a message holds memory.
type patientReader conn

func (r *patientReader) Read(b []byte) (int, error) {
	if !r.turned {
		if err := r.end.Limit(r.wire.Partial(), r.server.patience.message, r.net.SetReadDeadline); err != nil {
			return 0, err
		}
	}
	r.mu.Unlock()
	defer r.mu.Lock()
	return r.net.Read(b)
}

// patientWriter writes with a deadline, which it moves seldom: setting one
// costs as much as parsing a request. A peer has between half the patience and
// all of it.
type patientWriter conn

func (w *patientWriter) Write(b []byte) (int, error) {
	patience := w.server.patience.write
	if now := time.Now(); w.until.Sub(now) < patience/2 {
		w.until = now.Add(patience)
		if err := w.net.SetWriteDeadline(w.until); err != nil {
			w.broken = true
			return 0, err
		}
		if w.account.over.Load() != nil { // the deadline of evict may just have been lost
			w.lastWord()
		}
	}
	n, err := w.net.Write(b)
	w.broken = w.broken || err != nil
	return n, err
}

// serve answers requests until the peer is done, is wrong, or the daemon
// stops.
func (c *conn) serve(ctx context.Context) {
	c.mu.Lock()
	defer c.close()
	if !c.takeUp(ctx) {
		return
	}
	for {
		if c.rests() && c.server.park(c) {
			return
		}
		if err := c.wire.Read(&c.req); err != nil || c.account.over.Load() != nil {
			c.finish(err)
			return
		}
		c.end.Ended()
		if w, _ := c.handle(ctx); w != nil {
			c.await(ctx, w)
		}
		// Requests that are pending must not use up IDs for a peer that is gone.
		if c.broken || !c.wire.Pending() && c.wire.Flush() != nil {
			return
		}
	}
}

// takeUp goes on where the fast path stopped, and reports whether the connection still
// works.
func (c *conn) takeUp(ctx context.Context) bool {
	u := c.unfinished
	c.unfinished = unfinished{}
	if !c.sendRest(u.output) {
		if u.waits != nil {
			u.waits.giveUp()
		}
		return false
	}
	if u.waits != nil {
		c.await(ctx, u.waits)
	}
	return !c.broken && (c.wire.Pending() || c.wire.Flush() == nil)
}

// sendRest sends the answers that the fast path could not, and reports whether the
// connection still works.
func (c *conn) sendRest(output []byte) bool {
	defer c.account.Give(len(output))
	if c.account.over.Load() != nil {
		c.finish(nil)
		return false
	}
	if len(output) == 0 {
		return true
	}
	_, err := (*patientWriter)(c).Write(output)
	return err == nil
}

// evict makes the connection end at once: it holds memory that others need.
func (c *conn) evict() {
	_ = c.net.CloseRead()
	_ = c.net.SetWriteDeadline(time.Now())
	if c.abandon != nil {
		c.abandon(c.account.over.Load())
	}
}

// lastWord is the write deadline of a connection that ends for the memory it holds: none of its
// answers is waited for, except the last one, which says why.
func (w *patientWriter) lastWord() {
	until := time.Now()
	if w.farewell {
		until = until.Add(w.server.patience.refuse)
	}
	_ = w.net.SetWriteDeadline(until)
}

// await waits for the IDs of a request, and answers it. Answers that are ready do
// not wait with it.
func (c *conn) await(ctx context.Context, w *waiting) {
	c.waiting.Store(true)
	defer c.waiting.Store(false)
	if len(c.wire.Unsent()) > 0 && c.wire.Flush() != nil {
		w.giveUp()
		return
	}
	c.mu.Unlock()
	ranges, err := w.pending.Wait(ctx)
	c.mu.Lock()
	c.conclude(w, ranges, err)
}

// rests reports whether nothing is under way on the connection.
func (c *conn) rests() bool {
	return c.mayPark && c.slow.rest() && !c.wire.Pending() && !c.wire.Partial() && len(c.wire.Unsent()) == 0
}

// finish ends the connection after a failed read.
func (c *conn) finish(err error) {
	var parse *wire.ParseError
	over := c.account.over.Load()
	if over == nil && !errors.As(err, &parse) {
		_ = c.wire.Flush()
		c.outlast()
		return
	}
	c.wire.Discard() // others need the memory more than the rest of the message
	if over != nil {
		c.server.metrics.Requests("", string(over.Code)).Inc()
		c.farewell, c.until = true, time.Time{}
		c.wire.ReplyError(0, over)
		if c.wire.Flush() != nil {
			return
		}
	} else {
		c.server.metrics.Requests("", string(wire.CodeParseError)).Inc()
		c.server.log.Debug("peer does not speak MessagePack-RPC", zap.Error(err))
		_ = c.wire.Refuse(err)
	}
	// Unread bytes would turn the close into a reset, which may overtake
	// the answer.
	_ = c.net.CloseWrite()
	c.discard()
}

// discard reads the bytes that the peer still sends, up to a limit of bytes and time.
func (c *conn) discard() {
	_ = c.net.SetReadDeadline(time.Now().Add(c.server.patience.refuse))
	var waste [4 << 10]byte
	for left := wire.MaxMessage; left > 0; {
		n, err := c.net.Read(waste[:])
		if err != nil {
			return
		}
		left -= n
	}
}
