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
// MaxMessage because answers are larger than requests: 65,536 IDs are 590 KB as
// integers, but 1.4 MB as decimal strings.
const MaxResponse = 4 << 20

// farewellGrace is how long a failed write waits for the reading side to end.
const farewellGrace = 100 * time.Millisecond

var (
	// ErrClosed is the error of calls on a Client after Close.
	ErrClosed = errors.New("client closed")

	// ErrConnectionLost is the error of calls during which the stream broke, and of
	// all later calls. It comes wrapped, together with the cause.
	ErrConnectionLost = errors.New("connection lost")
)

// A Client calls methods over one stream. Calls may run concurrently: their answers are
// found by msgid. The Client ignores answers that no
// call waits for.
type Client struct {
	conn    io.ReadWriteCloser
	writes  chan struct{} // has room for the call that writes
	done    chan struct{} // closed by fail, once
	reading sync.WaitGroup

	mu       sync.Mutex
	lastID   uint32
	waiting  map[uint32]*waiter
	farewell *Error // an error with msgid 0: the server's last word
	err      error  // set before done is closed
	closeErr error  // likewise
}

// waiter is a call that waits for its answer. The goroutine that takes it out of the
// map sets raw, and then sends the one answer.
type waiter struct {
	raw  []byte      // the result
	done chan answer // has room for one
}

// answer is the outcome of a call.
type answer struct {
	refusal *Error // from the server
	err     error  // from the stream
}

// NewClient returns a Client on conn, which it owns from now on. Close of conn must end
// blocked Reads and Writes, as a socket's does. The Client must be closed. It ignores
// notifications and requests from the peer.
func NewClient(conn io.ReadWriteCloser) *Client {
	c := &Client{
		conn:    conn,
		writes:  make(chan struct{}, 1),
		done:    make(chan struct{}),
		waiting: make(map[uint32]*waiter),
	}
	c.reading.Go(c.readAll)
	return c
}

// Close closes the stream, fails the calls that wait with ErrClosed, and
// returns when the Client's goroutine has ended.
func (c *Client) Close() error {
	c.fail(ErrClosed)
	<-c.done
	c.reading.Wait()
	return c.closeErr
}

// Err says why the Client can call no more, or nil.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Call calls a method and stores its result in target, a pointer, or nowhere
// if target is nil. Structs, in params and in target, use their json tags.
//
// An integer result is read strictly into *uint64 and *int64, and an array of integers
// into *[]uint64: whole floats are accepted, and values that do not fit are an error. *any
// takes anything; other targets follow the rules of the msgpack library.
//
// The error is an *Error if the server answered with one. It wraps ctx.Err() if ctx
// ended first; the server may have carried the call out then. It wraps
// ErrConnectionLost or ErrClosed if the stream ended. After an error about encoding or
// decoding the Client can still be used.
func (c *Client) Call(ctx context.Context, method string, target any, params ...any) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("wire: call %s: %w", method, err)
	}
	id, w, err := c.register()
	if err != nil {
		return fmt.Errorf("wire: call %s: %w", method, err)
	}
	out, err := encodeRequest(id, method, params)
	if err != nil {
		c.forget(id)
		return fmt.Errorf("wire: call %s: %w", method, err)
	}
	c.write(ctx, out)
	var got answer
	select {
	case got = <-w.done:
	case <-ctx.Done():
		if c.forget(id) {
			return fmt.Errorf("wire: call %s: %w", method, ctx.Err())
		}
		got = <-w.done // the answer is being delivered
	}
	if got.refusal != nil {
		return got.refusal
	}
	if got.err != nil {
		return fmt.Errorf("wire: call %s: %w", method, got.err)
	}
	if err := decodeResult(w.raw, target); err != nil {
		return fmt.Errorf("wire: unreadable result of %s: %w", method, err)
	}
	return nil
}

// register reserves a msgid that no waiting call has. It never uses 0, with which
// servers answer messages that they could not read.
func (c *Client) register() (uint32, *waiter, error) {
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
	w := &waiter{done: make(chan answer, 1)}
	c.waiting[c.lastID] = w
	return c.lastID, w, nil
}

// forget gives up waiting, and reports whether there was no answer yet.
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

// fail ends the Client for the given reason. Only the first reason counts.
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
	for {
		n, err := c.conn.Read(in.Space())
		in.Added(n)
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
		if message.Type == TypeResponse {
			if err := c.deliver(message); err != nil {
				return err
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
		w.raw = slices.Clone(message.values.raw[message.values.pos():])
		w.done <- answer{}
	}
	return nil
}

// write writes a request. Where it cannot, the call hears of that as of its answer. If ctx ends
// meanwhile, the Client ends: a part of the request may be written.
func (c *Client) write(ctx context.Context, out []byte) {
	select {
	case c.writes <- struct{}{}:
	case <-ctx.Done():
		return
	case <-c.done:
		return
	}
	defer func() { <-c.writes }()
	if ctx.Err() != nil {
		return // nothing of it is written
	}
	defer context.AfterFunc(ctx, func() { c.fail(ctx.Err()) })()
	if _, err := c.conn.Write(out); err != nil {
		if ctx.Err() == nil {
			c.awaitFarewell()
		}
		c.fail(err)
	}
}

// awaitFarewell gives the reading goroutine a moment to reach the end of the stream. A
// server that turns a client away sends the reason and closes at once, and the client's
// write may fail before the reason is read.
func (c *Client) awaitFarewell() {
	timer := time.NewTimer(farewellGrace)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
	}
}
