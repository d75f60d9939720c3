package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// MaxResponse is the largest response that a Client accepts. It is larger than
// MaxMessage because answers are larger than questions: 65,536 IDs are 590 KB
// as integers, but 1.4 MB as decimal strings.
const MaxResponse = 4 << 20

// maxWaiting is how many encoded requests may wait for the stream to take
// them; a further caller waits, as long as its context allows.
const maxWaiting = 64

// farewellGrace is how long a failed write waits for the reading side to end.
const farewellGrace = 100 * time.Millisecond

var (
	// ErrClosed is the error of calls on a Client after Close.
	ErrClosed = errors.New("client closed")

	// ErrConnectionLost is the error of calls that the stream broke under, and
	// of all calls after that. It comes wrapped, together with the cause.
	ErrConnectionLost = errors.New("connection lost")
)

// A Client calls methods over one stream. Calls may run concurrently: they are
// pipelined, and their answers found by msgid. Requests and answers that nobody
// waits for are ignored.
type Client struct {
	conn io.ReadWriteCloser
	told func(*Client, *Request) // of what the peer sends by itself; may be nil
	send chan *outgoing          // to the writing goroutine
	done chan struct{}           // closed by fail, once
	both sync.WaitGroup          // the reading and the writing goroutine

	mu       sync.Mutex
	lastID   uint32
	waiting  map[uint32]*waiter
	farewell *Error // an error with msgid 0: the server's last word
	err      error  // set before done is closed
	closeErr error  // likewise
}

// waiter is a call that waits for its answer. Whoever takes it out of the map
// sets target, or raw, and then sends the one answer.
type waiter struct {
	target any
	raw    []byte      // the result, where target is left to the caller
	done   chan answer // has room for one
}

// answer is what became of a call.
type answer struct {
	refusal *Error // from the server
	err     error  // from the stream
	result  error  // about decoding
}

// NewClient returns a Client on conn, which it owns from now on. A Close of
// conn must end its blocked Reads and Writes, as that of a socket does. The
// Client must be closed. It ignores what the peer sends by itself.
func NewClient(conn io.ReadWriteCloser) *Client { return NewToldClient(conn, nil) }

// NewToldClient is NewClient with a function that is called with each notification
// and each request of the peer's, one after another, by the goroutine that reads:
// it must neither wait for the Client nor keep the message. Answer is for later.
func NewToldClient(conn io.ReadWriteCloser, told func(*Client, *Request)) *Client {
	c := &Client{
		conn:    conn,
		told:    told,
		send:    make(chan *outgoing, maxWaiting),
		done:    make(chan struct{}),
		waiting: make(map[uint32]*waiter),
	}
	c.both.Go(c.readAll)
	c.both.Go(c.writeAll)
	return c
}

// Close closes the stream, fails the calls that wait with ErrClosed, and
// returns when the Client's goroutines have ended.
func (c *Client) Close() error {
	c.fail(ErrClosed)
	<-c.done
	c.both.Wait()
	return c.closeErr
}

// Done returns a channel that is closed when the Client can call no more.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err says why the Client can call no more, or nil.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Call calls a method and stores its result in target, a pointer, or nowhere
// if target is nil. Structs, in params and in target, use their json tags.
//
// An integer result is read strictly into *uint64 and *int64, and an array of
// them into *[]uint64 and *[]Range: whole floats pass, and what does not fit is an
// error. *any takes anything; other targets follow the rules of the msgpack library.
//
// The error is an *Error if the server answered with one; ctx.Err(), wrapped,
// if ctx ended first, which leaves open whether the server carried the call
// out; ErrConnectionLost or ErrClosed, wrapped, if the stream did. An error
// about encoding or decoding leaves the Client usable.
func (c *Client) Call(ctx context.Context, method string, target any, params ...any) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("wire: call %s: %w", method, err)
	}
	id, w, err := c.register(target)
	if err != nil {
		return fmt.Errorf("wire: call %s: %w", method, err)
	}
	out, err := encodeRequest(id, method, params)
	if err != nil {
		c.forget(id)
		return fmt.Errorf("wire: call %s: %w", method, err)
	}
	select {
	case c.send <- out:
	case <-ctx.Done(): // noticed below
	case <-c.done: // likewise: fail answers everybody
	}
	var got answer
	select {
	case got = <-w.done:
	case <-ctx.Done():
		if c.forget(id) {
			return fmt.Errorf("wire: call %s: %w", method, ctx.Err())
		}
		got = <-w.done // it is coming right now
	}
	if got.refusal != nil {
		return got.refusal
	}
	if got.err != nil {
		return fmt.Errorf("wire: call %s: %w", method, got.err)
	}
	if w.raw != nil {
		got.result = decodeResult(w.raw, target)
	}
	if got.result != nil {
		return fmt.Errorf("wire: result of %s: %w", method, got.result)
	}
	return nil
}

// Answer answers a request of the peer's: with the text of refusal unless that is
// nil, else with result. An error says that nothing was sent.
func (c *Client) Answer(id uint32, result any, refusal error) error {
	out, err := encodeAnswer(id, result, refusal)
	if err == nil {
		err = c.Err()
	}
	if err != nil {
		return fmt.Errorf("wire: answer: %w", err)
	}
	select {
	case c.send <- out:
	case <-c.done: // it was lost with the stream
	}
	return nil
}

// register reserves a msgid that no waiting call has. It never gives 0, with
// which servers answer what they could not read.
func (c *Client) register(target any) (uint32, *waiter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, nil, c.err
	}
	for {
		c.lastID++
		if _, taken := c.waiting[c.lastID]; c.lastID != 0 && !taken {
			break
		}
	}
	w := &waiter{target: target, done: make(chan answer, 1)}
	c.waiting[c.lastID] = w
	return c.lastID, w, nil
}

// forget gives up waiting, and reports whether there still was no answer.
func (c *Client) forget(id uint32) bool {
	return c.take(id) != nil
}

// take removes a waiting call, so that it gets exactly one answer.
func (c *Client) take(id uint32) *waiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.waiting[id]
	delete(c.waiting, id)
	return w
}

// fail ends the Client for the given reason; only the first one counts.
func (c *Client) fail(reason error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	if reason != ErrClosed {
		if c.farewell != nil {
			reason = c.farewell
		}
		reason = fmt.Errorf("%w: %w", ErrConnectionLost, reason)
	}
	c.err = reason
	waiting := c.waiting
	c.waiting = nil
	c.mu.Unlock()

	c.closeErr = c.conn.Close()
	close(c.done)
	for _, w := range waiting {
		w.done <- answer{err: reason}
	}
}

// readAll hands answers to their calls until the stream ends.
func (c *Client) readAll() {
	in := NewInbox(MaxResponse)
	defer in.Release()
	var message Request
	for empty := 0; empty < maxEmptyReads; empty++ {
		n, err := c.conn.Read(in.Space())
		in.Added(n)
		if n > 0 {
			empty = 0
		}
		if unreadable := c.deliverAll(in, &message); unreadable != nil {
			err = unreadable
		} else if err == io.EOF && in.Partial() {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
	c.fail(io.ErrNoProgress)
}

// deliverAll handles the whole messages in the buffer.
func (c *Client) deliverAll(in *Inbox, message *Request) error {
	for {
		msg, err := in.Next()
		if err == nil && msg != nil {
			err = message.Parse(msg)
		}
		if err != nil {
			return fmt.Errorf("unreadable answer: %w", err)
		}
		if msg == nil {
			return nil
		}
		switch message.Type {
		case TypeResponse:
			if err := c.deliver(message); err != nil {
				return err
			}
		case TypeNotification, TypeRequest:
			if c.told != nil {
				c.told(c, message)
			}
		}
	}
}

// deliver hands one response to its call.
func (c *Client) deliver(message *Request) error {
	answered, err := message.values.answerError()
	if err != nil {
		return err
	}
	if message.ID == 0 && answered != nil {
		c.mu.Lock()
		c.farewell = answered
		c.mu.Unlock()
	}
	w := c.take(message.ID)
	switch {
	case w == nil: // its call gave up, or never was
	case answered != nil:
		w.done <- answer{refusal: answered}
	default:
		// Integers cost less to decode than to copy for somebody else.
		taken, err := message.values.integers(w.target)
		if !taken {
			w.raw = slices.Clone(message.values.raw[message.values.pos():])
		}
		w.done <- answer{result: err}
	}
	return nil
}

// writeAll writes requests until the Client fails, as many at once as wait.
func (c *Client) writeAll() {
	var batch []byte
	for {
		select {
		case out := <-c.send:
			batch = c.collect(batch[:0], out)
		case <-c.done:
			return
		}
		n, err := c.conn.Write(batch)
		if err == nil && n < len(batch) {
			err = io.ErrShortWrite
		}
		if err != nil {
			c.awaitFarewell()
			c.fail(err)
			return
		}
		if cap(batch) > HighWater {
			batch = nil
		}
	}
}

// collect appends the request and those that wait behind it to batch.
func (c *Client) collect(batch []byte, out *outgoing) []byte {
	for {
		batch = append(batch, out.out.buf...)
		out.recycle()
		if len(batch) >= HighWater {
			return batch
		}
		select {
		case out = <-c.send:
		default:
			return batch
		}
	}
}

// awaitFarewell gives the reading goroutine a moment to come to the end of the
// stream: a server that turns a client away says why and closes at once, and
// the client's write may fail before that word is read.
func (c *Client) awaitFarewell() {
	timer := time.NewTimer(farewellGrace)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
	}
}
