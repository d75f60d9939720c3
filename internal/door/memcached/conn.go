package memcached

import (
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
	// smallBuffer is what a connection reads into. A longer line is counted.
	smallBuffer = 4 << 10
	// sendAt is after how many bytes of answers they are sent.
	sendAt = 4 << 10
	// lastWord is how long an evicted peer has to take the reason.
	lastWord = 100 * time.Millisecond
)

// conn is a connection. One goroutine serves it.
type conn struct {
	server  *server
	guest   *daemon.Guest
	buf     []byte // lines that are not answered yet
	held    int    // bytes of buf that are counted
	out     []byte // answers that are not sent yet
	end     daemon.MessageEnd
	unsaid  bool      // an answer was not sent, because of an eviction
	broken  error     // of an answer that was sent in part, or not at all
	written time.Time // the write deadline
}

// serve answers until the connection ends.
func (c *conn) serve() {
	for c.lines() && c.guest.Evicted() == nil && c.read() {
	}
	c.farewell()
	c.shrink()
}

// farewell tells a peer that expects an answer why its connection was evicted.
func (c *conn) farewell() {
	why, ok := c.guest.Evicted().(*wire.Error)
	if ok && c.broken == nil && (c.unsaid || len(c.buf) > 0) {
		_ = c.guest.Conn.SetWriteDeadline(time.Now().Add(lastWord))
		_, _ = c.guest.Conn.Write(Refusal(why))
	}
}

// lines answers all that are whole, and reports whether the connection goes on.
func (c *conn) lines() bool {
	rest := c.buf
	defer func() { c.buf = c.buf[:copy(c.buf, rest)] }()
	for {
		line, after, found := bytes.Cut(rest, []byte{'\n'})
		if binary := len(rest) > 0 && rest[0] == binaryRequest; !found && !binary {
			return c.flush() == nil
		}
		goesOn := c.answer(line)
		rest = after
		c.end.Ended()
		if !goesOn {
			_ = c.flush()
			return false
		}
		if len(c.out) >= sendAt && c.flush() != nil {
			return false
		}
	}
}

// answer answers a line, without its end, and reports whether the connection goes on.
func (c *conn) answer(line []byte) bool {
	if len(line) > 0 && line[0] == binaryRequest {
		c.out = append(c.out, notBinary...)
		return false
	}
	v, rest := parse(bytes.TrimSuffix(line, []byte{'\r'}))
	switch v {
	case verbGet, verbGets:
		return c.get(rest, v == verbGets)
	case verbStats:
		c.out = c.server.stats(c.out)
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
	s.gets.Add(1)
	s.hits.Add(int64(count))
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

// failed answers with the error, unless the peer is gone.
func (c *conn) failed(err error, began time.Duration) bool {
	reply := c.server.door.Failed(err, began)
	c.server.gets.Add(1)
	if reply == nil {
		return false
	}
	c.server.misses.Add(1)
	c.out = append(c.out, Refusal(reply)...)
	return true
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
		if c.server.cut.Load() { // its deadline may just have been lost
			_ = c.guest.SetWriteDeadline(c.server.late())
		}
	}
	_, c.broken = c.guest.Write(c.out)
	c.out = c.out[:0]
	return c.broken
}

// read waits for ever for a line to begin, and not for ever for its end.
func (c *conn) read() bool {
	if !c.room() {
		return false
	}
	message, _ := c.server.door.Patience()
	late, _ := c.server.door.Drain()
	if _, err := c.end.Limit(len(c.buf) > 0, message, c.server.draining.Load, late, c.guest.SetReadDeadline); err != nil {
		return false
	}
	n, err := c.guest.Read(c.buf[len(c.buf):cap(c.buf)])
	c.buf = c.buf[:len(c.buf)+n]
	return err == nil || n > 0
}

// room makes some for the rest of a line, and reports whether it may be as long.
func (c *conn) room() bool {
	if len(c.buf) == 0 {
		c.shrink()
	}
	if len(c.buf) < cap(c.buf) {
		return true
	}
	if cap(c.buf) >= maxLine {
		c.out = append(c.out, lineTooLong...)
		_ = c.flush()
		return false
	}
	if c.guest.Memory().Reserve(maxLine) != nil {
		return false
	}
	c.held = maxLine
	c.buf = append(make([]byte, 0, maxLine), c.buf...)
	return true
}

// shrink gives back a large buffer that is not needed.
func (c *conn) shrink() {
	if c.held > 0 {
		c.guest.Memory().Give(c.held)
		c.held, c.buf = 0, make([]byte, 0, smallBuffer)
	}
}

// hurry leaves the peer a moment for requests from before the drain.
func (c *conn) hurry() { _ = c.guest.SetReadDeadline(c.server.late()) }
