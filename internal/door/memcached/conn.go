package memcached

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/snowflake"
	"github.com/kazahana/kazahana/internal/wire"
)

const (
	// sendAt is after how many bytes of answers they are sent.
	sendAt = 4 << 10
	// lastWord is how long an evicted peer has to take the reason.
	lastWord = 100 * time.Millisecond
)

// conn is a connection. One goroutine serves it.
type conn struct {
	server  *server
	guest   *daemon.Guest
	in      *bufio.Reader // has room for one line
	out     []byte        // answers that are not sent yet
	end     daemon.MessageEnd
	unsaid  bool      // an answer was not sent, because of an eviction
	broken  error     // of an answer that was sent in part, or not at all
	written time.Time // the write deadline
}

// serve answers until the connection ends.
func (c *conn) serve() {
	for goesOn := true; goesOn && c.guest.Evicted() == nil; {
		goesOn = c.next()
	}
	_ = c.flush()
	c.farewell()
}

// farewell tells a peer that expects an answer why its connection was evicted.
func (c *conn) farewell() {
	why, ok := c.guest.Evicted().(*wire.Error)
	if ok && c.broken == nil && (c.unsaid || c.in.Buffered() > 0) {
		_ = c.guest.Conn.SetWriteDeadline(time.Now().Add(lastWord))
		_, _ = c.guest.Conn.Write(Refusal(why))
	}
}

// patientReader sends the answers that are ready, and waits for ever for a line to begin, and not
// for ever for its end.
type patientReader conn

func (r *patientReader) Read(b []byte) (int, error) {
	if err := (*conn)(r).flush(); err != nil {
		return 0, err
	}
	message, _ := r.server.door.Patience()
	if err := r.end.Limit(r.in.Buffered() > 0, message, r.guest.SetReadDeadline); err != nil {
		return 0, err
	}
	return r.guest.Read(b)
}

// next answers a line, and reports whether the connection goes on.
func (c *conn) next() bool {
	first, err := c.in.Peek(1)
	if err != nil {
		return false
	}
	if first[0] == binaryRequest {
		c.out = append(c.out, notBinary...)
		return false
	}
	line, err := c.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		c.out = append(c.out, lineTooLong...)
	}
	if err != nil {
		return false
	}
	c.end.Ended()
	return c.answer(line[:len(line)-1]) && (len(c.out) < sendAt || c.flush() == nil)
}

// answer answers a line, without its end, and reports whether the connection goes on.
func (c *conn) answer(line []byte) bool {
	v, rest := parse(bytes.TrimSuffix(line, []byte{'\r'}))
	switch v {
	case verbGet, verbGets:
		return c.get(rest, v == verbGets)
	case verbVersion:
		c.out = fmt.Appendf(c.out, "VERSION %s\r\n", c.server.version)
	case verbQuit, verbHTTP:
		return false
	case verbStore:
		c.out = append(c.out, readOnly...) // what follows is no command
		return false
	default:
		c.out = append(c.out, unknownCommand...)
	}
	return true
}

// get answers with IDs. It gets all before it writes the first: an answer is whole, or an error.
func (c *conn) get(keys []byte, cas bool) bool {
	s := c.server
	began := s.door.Elapsed()
	orders, count, err := readOrders(s.door, keys)
	switch {
	case errors.Is(err, errBadKey):
		c.out = append(c.out, badKey...)
		return true
	case err != nil:
		return c.failed(err, began)
	case count == 0:
		c.out = append(c.out, unknownCommand...)
		return true
	}
	if c.flush() != nil { // answers that are ready do not wait with it
		return false
	}
	defer c.guest.Room(int64(count + len(orders)))()
	var ranges []generator.Range
	for _, o := range orders {
		ranges, err = c.guest.Next(s.work, o.service, generator.Request{Count: o.count, Timeout: daemon.DefaultTimeout}, ranges)
		if err != nil {
			return c.failed(err, began)
		}
	}
	s.door.Answered(began)
	return c.values(keys, ranges, cas)
}

// values answers with an ID for each key.
func (c *conn) values(keys []byte, ranges []generator.Range, cas bool) bool {
	for used := int64(0); ; used++ {
		key, rest := nextKey(keys)
		if len(key) == 0 {
			c.out = append(c.out, end...)
			return true
		}
		if used == ranges[0].Count {
			ranges, used = ranges[1:], 0
		}
		c.out = appendValue(c.out, key, ranges[0].Start+snowflake.ID(used), cas)
		keys = rest
		if len(c.out) >= sendAt && c.flush() != nil {
			return false
		}
	}
}

// failed answers with the error, unless the peer is gone. A connection that the stop has refused
// ends: another daemon may be there.
func (c *conn) failed(err error, began time.Duration) bool {
	reply := c.server.door.Failed(err, began)
	if reply == nil {
		return false
	}
	c.out = append(c.out, Refusal(reply)...)
	return reply.Code != wire.CodeShuttingDown
}

// flush sends the answers. It moves the deadline seldom: setting one costs as much as an answer.
func (c *conn) flush() error {
	if len(c.out) == 0 || c.broken != nil {
		return c.broken
	}
	if err := c.guest.Evicted(); err != nil {
		c.unsaid = true
		return err
	}
	_, patience := c.server.door.Patience()
	if now := time.Now(); c.written.Sub(now) < patience/2 {
		c.written = now.Add(patience)
		if err := c.guest.SetWriteDeadline(c.written); err != nil {
			return err
		}
	}
	_, c.broken = c.guest.Write(c.out)
	c.out = c.out[:0]
	return c.broken
}
