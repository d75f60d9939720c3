package kazahana

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/kazahana/kazahana/clients/go/internal/msgpack"
)

const maxAnswer = 4 << 20 // bytes; 65,536 IDs as decimal strings are 1.4 MB

// errExpired is the error of a call that is out of time.
var errExpired = errors.New("no answer in time")

// A conn is one connection to the daemon. It carries one call at a time: the caller writes
// the request and reads the answer.
type conn struct {
	nc     net.Conn
	in     *msgpack.Reader
	out    []byte // the last request, whose room serves the next one
	msgid  byte
	clean  bool                              // the last answer was read to its end, and another call may follow
	notice func(method string, params []any) // may be nil

	interrupt   func() // ends the reads and writes under way
	interrupted chan struct{}
}

func newConn(nc net.Conn) *conn {
	c := &conn{nc: nc, in: msgpack.NewReader(nc), interrupted: make(chan struct{}, 1)}
	c.interrupt = func() {
		_ = c.nc.SetDeadline(time.Unix(1, 0))
		c.interrupted <- struct{}{}
	}
	return c
}

// limit limits what follows, until settle, to the time of the deadline and the context.
func (c *conn) limit(ctx context.Context, deadline time.Time) (stop func() bool, err error) {
	if err = c.in.Err(); err == nil {
		err = c.nc.SetDeadline(deadline)
	}
	switch {
	case err != nil:
		return nil, lost(err)
	case ctx.Done() == nil:
		return nil, nil
	}
	return context.AfterFunc(ctx, c.interrupt), nil
}

// settle makes sure that the context of limit does not interrupt the connection any more.
func (c *conn) settle(stop func() bool) {
	if stop != nil && !stop() {
		<-c.interrupted
	}
}

// exchange sends a request, and reads its answer.
func exchange[T any](ctx context.Context, c *conn, deadline time.Time, r request, read reading[T]) (result T, err error) {
	c.msgid = c.msgid%127 + 1 // one byte
	out, err := r.encode(c.out[:0], c.msgid, time.Until(deadline))
	if err != nil {
		return result, err
	}
	c.out, c.clean = out, false
	stop, err := c.limit(ctx, deadline)
	if err != nil {
		return result, err
	}
	defer c.settle(stop)
	_, _ = c.nc.Write(c.out) // after a failure, the daemon's last word may still be there to read
	if err = c.answer(); err != nil {
		return result, err
	}
	value, err := read(c.in)
	if failed := c.in.Err(); failed != nil {
		err = ended(failed)
	}
	if err == nil {
		result, c.clean = value, true
	}
	return result, err
}

// answer reads up to the result of the call under way. Its error is that of the call.
func (c *conn) answer() error {
	for {
		kind, id, err := c.head()
		if err != nil {
			return err
		}
		if kind != msgpack.Answer || id != uint32(c.msgid) && id != 0 {
			c.pass(kind) // an answer to another call: its caller has given up
			continue
		}
		text, isRefused := c.in.Refusal()
		if !isRefused && id != 0 {
			return nil
		}
		c.in.Value()
		if isRefused && c.in.Err() == nil {
			err = ParseError(text)
			c.clean = id != 0 && !turnsAway(err) // with the ID 0 the daemon answers what it cannot read
			return err
		}
	}
}

// head waits for a message, and reads its head.
func (c *conn) head() (kind int64, id uint32, err error) {
	if err = c.in.Await(); err == nil {
		kind, id = c.in.Head(maxAnswer)
		err = c.in.Err()
	}
	return kind, id, ended(err)
}

// pass reads the rest of a message that is no answer to the call under way.
func (c *conn) pass(kind int64) {
	method, _ := c.in.Value().(string)
	params, _ := c.in.Value().([]any)
	if kind == msgpack.Notification && c.notice != nil && c.in.Err() == nil {
		c.notice(method, params)
	}
}

// ended is the error of a call that lost its connection.
func ended(err error) error {
	if err == nil {
		return nil
	}
	var wrong msgpack.FormatError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errExpired
	case errors.As(err, &wrong):
		return protocolError("the peer is not a kazahana daemon: %v", wrong)
	}
	return lost(err)
}

func lost(err error) error {
	return &DaemonUnavailableError{Err: fmt.Errorf("connection lost: %w", err)}
}

// turnsAway reports whether the daemon closes the connection after the refusal.
func turnsAway(err error) bool {
	return errors.Is(err, ErrShuttingDown) || errors.Is(err, ErrOverloaded) || errors.Is(err, ErrPermissionDenied)
}
