package daemon

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/wire"
)

// responder is where requests are answered, one at a time: those of one connection, or
// those of all connections on the fast path. It never waits. A request that has to wait
// for IDs leaves it as a waiting, and comes back to be concluded.
type responder struct {
	server  *Server
	conn    *conn    // the connection of the requests; nil: they are the fast path's
	account *account // of the connection that has its turn
	req     wire.Request
	out     *wire.Outbox
	ranges  []generator.Range // reused from request to request
	reading generator.Reading // of the clock, for all requests of a burst; 0: each has its own
	waits   *waiting          // the request for which errWaits was returned
}

// elapsed is the time since the start, which costs half of what time.Now does.
func (s *Server) elapsed() time.Duration { return time.Since(s.started) }

var (
	// errWaits: the answer comes later; responder.waits is the waiting request.
	errWaits = errors.New("the request waits")
	// errHeavy: the request takes longer than others on the fast path may be kept waiting.
	errHeavy = errors.New("the request is too much for the fast path")
)

// waiting is a request that waits for IDs. It is counted in bounds until
// conclude or giveUp.
type waiting struct {
	request idRequest
	pending *generator.Pending
	method  *countedMethod
	account *account
	began   time.Duration // since the server's start
	bytes   int64         // for account.doneWaiting
}

// handle answers the present request. waits is the request if it has to wait for
// IDs. here is false for a request that is not for the fast path: it has not been answered.
func (d *responder) handle(ctx context.Context) (waits *waiting, here bool) {
	s := d.server
	if d.req.Type != wire.TypeRequest {
		// The fast path asks no peer, and waits for no lock.
		if d.req.Type == wire.TypeResponse && d.conn != nil {
			if e := s.executorOf(d.conn); e != nil {
				e.calls.answer(&d.req)
			}
		}
		return nil, true // it wants no answer
	}
	began := s.elapsed()
	m := s.method(d.req.Method)
	switch err := s.call(ctx, m, d); {
	case errors.Is(err, errLater):
		s.answerLater(ctx, d.conn, m, began)
	case errors.Is(err, errHeavy):
		return nil, false
	default:
		waits = d.settle(d.req.ID, m, began, err)
	}
	return waits, true
}

// settle is after a method: it counts a request that was answered, or answers it
// with the error. It returns the request if it waits instead.
func (d *responder) settle(id uint32, m *countedMethod, began time.Duration, err error) *waiting {
	s := d.server
	switch {
	case err == nil:
		m.succeeded().Inc()
	case errors.Is(err, errWaits):
		w := d.waits
		d.waits, w.method, w.began = nil, m, began
		return w
	case errors.Is(err, errHungUp):
		return nil // no peer waits any more
	default:
		reply := s.wireError(err)
		s.failed(m, reply.Code).Inc()
		d.out.ReplyError(id, reply)
	}
	s.metrics.RPCDuration.Observe(s.elapsed()-began, 1)
	return nil
}

// issue answers with IDs. Where they have to be waited for it returns errWaits.
func (d *responder) issue(r *idRequest) error {
	ranges, pending, err := r.generator.Start(d.reading, r.want, d.ranges[:0])
	if pending != nil {
		return d.beginWait(r, pending)
	}
	d.ranges = ranges
	if err != nil {
		return err
	}
	d.replyIDs(r)
	return nil
}

// beginWait lets the request wait, unless too many do. The ranges are its own now.
func (d *responder) beginWait(r *idRequest, pending *generator.Pending) error {
	d.ranges = nil
	bytes, refusal := d.account.waits(r.want.Count)
	if refusal != nil {
		pending.Cancel(refusal)
		return refusal
	}
	d.waits = &waiting{request: *r, pending: pending, account: d.account, bytes: bytes}
	return errWaits
}

// conclude answers a request that has waited.
func (d *responder) conclude(w *waiting, ranges []generator.Range, err error) {
	if err == nil {
		d.ranges = ranges
		d.replyIDs(&w.request)
	}
	d.settle(w.request.id, w.method, w.began, err)
	w.account.doneWaiting(w.bytes)
}

// giveUp ends a wait after its peer has gone.
func (w *waiting) giveUp() {
	w.pending.Cancel(errHungUp)
	w.account.doneWaiting(w.bytes)
}

// replyIDs answers with the IDs in d.ranges.
func (d *responder) replyIDs(r *idRequest) {
	switch id := d.ranges[0].Start; {
	case !r.single:
		d.replyArray(r)
	case r.format == formatInt:
		d.out.ReplyUint64(r.id, uint64(id))
	case r.format == formatString:
		d.out.ReplyString(r.id, strconv.FormatInt(int64(id), 10))
	default:
		d.out.ReplyString(r.id, r.service.Codec().Encode(id))
	}
}

func (d *responder) replyArray(r *idRequest) {
	d.out.BeginArray(r.id, int(r.want.Count))
	codec := r.service.Codec() // one for the whole answer
	for _, g := range d.ranges {
		if r.format == formatInt {
			d.out.AppendRange(uint64(g.Start), int(g.Count))
			continue
		}
		for i := range g.Count {
			id := g.Start + snowflake.ID(i)
			if r.format == formatExternal {
				d.out.AppendString(codec.Encode(id))
			} else {
				d.out.AppendString(strconv.FormatInt(int64(id), 10))
			}
		}
	}
	d.ranges = keepSmall(d.ranges)
}

// keepSmall reuses the slice unless a huge batch has made it large: idle
// connections must cost little.
func keepSmall(ranges []generator.Range) []generator.Range {
	const most = 64
	if cap(ranges) > most {
		return nil
	}
	return ranges
}
