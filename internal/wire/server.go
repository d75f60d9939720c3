package wire

import (
	"errors"
	"io"
)

// A ServerConn is the server's end of a stream: it reads requests and, through
// its Outbox, writes replies. One goroutine at a time may use Read and Pending,
// and one at a time the Outbox; the two may be different ones.
//
// To answer pipelined requests with few writes, flush only when nothing is
// Pending:
//
//	for conn.Read(&req) == nil {
//		answer(conn, &req)
//		if !conn.Pending() && conn.Flush() != nil {
//			break
//		}
//	}
type ServerConn struct {
	Outbox
	in      Inbox
	r       io.Reader
	readErr error // came together with bytes, which go first
}

// NewServerConn returns a ServerConn that reads from r and writes to w.
func NewServerConn(r io.Reader, w io.Writer) *ServerConn {
	c := &ServerConn{r: r, in: Inbox{split: NewSplitter(MaxMessage)}}
	c.init(w)
	return c
}

// SetMemory makes m count the larger buffers. It is called before anything else.
func (c *ServerConn) SetMemory(m Memory) { c.in.memory, c.out.memory = m, m }

// Discard drops the part of a message that was read, and its buffer. Read must not be called
// after it.
func (c *ServerConn) Discard() {
	c.in.start = c.in.end
	c.in.Release()
}

// Read reads the next message into req, and waits for it as long as the reader does. It
// returns io.EOF if the stream ends between messages, io.ErrUnexpectedEOF inside one, a
// *ParseError for bytes that are not a message, the error of Memory where there is no
// room for the message, and the reader's other errors as they are. After an error of the reader, such as a deadline, Read may be called again and
// goes on where it was; a *ParseError stays.
//
// Responses and notifications are returned like requests; they must not be answered.
func (c *ServerConn) Read(req *Request) error {
	for {
		msg, err := c.in.Next()
		if err != nil {
			return err
		}
		if msg != nil {
			if err := req.Parse(msg); err != nil {
				return c.in.reject(err)
			}
			return nil
		}
		if err := c.fill(); err != nil {
			return err
		}
	}
}

// fill reads until there is something.
func (c *ServerConn) fill() error {
	for {
		if err := c.readErr; err != nil {
			c.readErr = nil
			if err == io.EOF && c.in.Partial() {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		space := c.in.Space()
		if c.in.err != nil {
			return c.in.err
		}
		n, err := c.r.Read(space)
		c.in.Added(n)
		c.readErr = err
		if n > 0 {
			return nil
		}
	}
}

// Preload makes Read begin with bytes that were already read from the stream.
func (c *ServerConn) Preload(b []byte) { c.in.Preload(b) }

// Pending reports whether Read would return without reading from the stream: the buffer
// holds another message, or bytes that are not a message.
func (c *ServerConn) Pending() bool { return c.in.Pending() }

// Partial reports whether a message has begun and not ended.
func (c *ServerConn) Partial() bool { return c.in.Partial() }

// Refuse answers a *ParseError of Read with one error response that has msgid 0, and
// flushes. It does nothing for other errors. After it the connection must be closed.
func (c *ServerConn) Refuse(err error) error {
	if parse, ok := errors.AsType[*ParseError](err); ok {
		c.ReplyError(0, Errorf(CodeParseError, "%v", parse))
	}
	return c.Flush()
}
