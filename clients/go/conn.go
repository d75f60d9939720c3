package kazahana

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/clients/go/internal/msgpack"
)

const (
	maxRequest = 256 << 10 // bytes, as the daemon has it
	maxAnswer  = 4 << 20   // 65,536 IDs as decimal strings are 1.4 MB
	// maxWaiting is how many requests wait to be written. A further caller waits, as long
	// as its time allows.
	maxWaiting = 64
	// farewellGrace is how long a failed write waits for the daemon's last word: a daemon
	// that turns a client away sends the reason and closes at once.
	farewellGrace = 100 * time.Millisecond
	maxRefusal    = 1024 // bytes of an error's text that go to the daemon
)

// A Conn is one connection to the daemon. Client.Open returns one, for methods with an effect
// that ends with the connection. Calls may be concurrent: they are pipelined.
type Conn struct {
	nc   net.Conn
	told func(*Conn, *Message) // called for messages that are not answers; may be nil
	send chan []byte           // to the writing goroutine
	done chan struct{}         // closed by fail, once
	work sync.WaitGroup        // the reading and the writing goroutine

	mu       sync.Mutex
	lastID   uint32
	waiting  map[uint32]*waiter // mu is held while one of them is answered
	farewell error              // the last answer, if it refuses the calls that wait, too
	err      error              // set before done is closed
}

// NewConn returns a Conn over a connection that is there already, for programs that talk
// with a client as the daemon does, such as package kazahanatest. told is as in
// Client.Open.
func NewConn(nc net.Conn, told func(*Conn, *Message)) *Conn {
	c := &Conn{nc: nc, told: told, send: make(chan []byte, maxWaiting), done: make(chan struct{}), waiting: map[uint32]*waiter{}}
	c.work.Add(2)
	go c.readAll()
	go c.writeAll()
	return c
}

// Close fails the calls that wait with ErrClosed, and returns when the goroutines of the
// connection have ended. The function that is told of messages must not call it.
func (c *Conn) Close() error {
	c.fail(ErrClosed)
	c.work.Wait()
	return nil
}

// Done returns a channel that is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err says why the connection has ended, or returns nil.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Call calls a method over this connection and no other, for as long as ctx allows: see
// Client.Call. An error of the connection is a *DaemonUnavailableError, or the daemon's reason
// to close it.
func (c *Conn) Call(ctx context.Context, method string, result any, params ...any) error {
	w := newWaiter(ctx, MaxTimeout)
	defer w.timer.Stop()
	switch err := c.call(w, request{method: method, params: params}); err {
	case nil:
		return assign(w.value, result)
	case errExpired:
		return w.end(method, nil)
	default:
		return err
	}
}

// call sends a request, and waits for its answer.
func (c *Conn) call(w *waiter, r request) error {
	out, err := r.encode(w.left())
	if err != nil {
		return err
	}
	id, err := c.register(w, r.read)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(out[msgidAt:], id)
	for send := c.send; ; {
		select {
		case send <- out:
			send = nil
		case <-w.done: // fail answers every call, too
			return w.err
		case <-w.ctx.Done():
			return c.abandon(id, w)
		case <-w.timer.C:
			return c.abandon(id, w)
		}
	}
}

// register reserves a msgid that no waiting call has. It never uses 0, with which the
// daemon answers messages that it could not read.
func (c *Conn) register(w *waiter, read reading) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	for c.lastID++; c.lastID == 0 || c.waiting[c.lastID] != nil; {
		c.lastID++
	}
	w.read = read
	c.waiting[c.lastID] = w
	return c.lastID, nil
}

// abandon forgets a call that is out of time, unless its answer has come meanwhile.
func (c *Conn) abandon(id uint32, w *waiter) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[id] != w {
		<-w.done
		return w.err
	}
	delete(c.waiting, id)
	return errExpired
}

// fail ends the connection for the given reason. Only the first reason counts.
func (c *Conn) fail(reason error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	if c.farewell != nil && reason != ErrClosed {
		reason = c.farewell
	}
	for _, w := range c.waiting {
		w.answer(nil, reason)
	}
	c.err, c.waiting = reason, nil
	c.mu.Unlock()
	_ = c.nc.Close()
	close(c.done)
}

func lost(err error) error {
	return &DaemonUnavailableError{Err: fmt.Errorf("connection lost: %w", err)}
}

// readAll hands messages to their receivers, until the stream ends.
func (c *Conn) readAll() {
	defer c.work.Done()
	r := msgpack.NewReader(c.nc)
	for r.Err() == nil {
		c.read(r)
	}
	var wrong msgpack.FormatError
	if err := r.Err(); errors.As(err, &wrong) {
		c.fail(protocolError("the peer is not a kazahana daemon: %v", wrong))
	} else {
		c.fail(lost(err))
	}
}

// read reads one message.
func (c *Conn) read(r *msgpack.Reader) {
	r.Next(maxAnswer)
	size := r.Array()
	if size != 3 && size != 4 {
		r.Fail("an array of %d is no message", size)
	}
	switch kind := r.Int(); {
	case size == 4 && kind == 1:
		c.answer(uint32(r.Int()), r)
	case size == 4 && kind == 0 || size == 3 && kind == 2:
		m := &Message{IsRequest: kind == 0}
		if m.IsRequest {
			m.id = uint32(r.Int())
		}
		m.Method, _ = r.Value().(string)
		m.Params, _ = r.Value().([]any)
		if r.Err() == nil && c.told != nil {
			c.told(c, m)
		}
	default:
		r.Fail("a message of the kind %d", kind)
	}
}

// answer reads an answer for its call.
func (c *Conn) answer(id uint32, r *msgpack.Reader) {
	refusal, read := r.Value(), reading(readValue)
	c.mu.Lock()
	w := c.waiting[id]
	if w != nil && w.read != nil && refusal == nil {
		read = w.read
	}
	c.mu.Unlock()
	value, err := read(r)
	if refusal != nil {
		err = refused(refusal)
	}
	if r.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// A daemon that turns a client away answers its first request only, which has the ID 1, and
	// closes.
	if c.farewell = err; id > 1 || id == 1 && !errors.Is(err, ErrOverloaded) && !errors.Is(err, ErrPermissionDenied) {
		c.farewell = nil
	}
	if w = c.waiting[id]; w != nil { // it may have given up while the value came
		delete(c.waiting, id)
		w.answer(value, err)
	}
}

// refused is the error of an answer.
func refused(refusal any) error {
	if pair, ok := refusal.([]any); ok && len(pair) == 2 {
		if text, ok := pair[1].(string); ok {
			return parseError(text)
		}
	}
	return protocolError("the answer's error is not [kind, text]")
}

// readValue reads a result of any form, readID an ID, and readIDs an array of them.
func readValue(r *msgpack.Reader) (any, error) { return r.Value(), nil }

func readID(r *msgpack.Reader) (any, error) {
	id := ID(r.Int())
	return id, ascend(0, id)
}

func readIDs(r *msgpack.Reader) (any, error) {
	n, last := r.Array(), ID(0)
	ids, err := make([]ID, 0, min(n, MaxBatch)), error(nil)
	for ; n > 0 && r.Err() == nil; n-- {
		id := ID(r.Int())
		if err == nil {
			err = ascend(last, id)
		}
		ids, last = append(ids, id), id
	}
	return ids, err
}

func ascend(last, id ID) error {
	if id > last {
		return nil
	}
	return protocolError("the answer has the ID %d: IDs are 1 to 2^63-1, and ascend within an answer", id)
}

// writeAll writes requests until the connection ends, all waiting ones at once.
func (c *Conn) writeAll() {
	defer c.work.Done()
	w := bufio.NewWriter(c.nc)
	for {
		select {
		case out := <-c.send:
			_, _ = w.Write(out) // Flush returns its error
		case <-c.done:
			return
		}
		if len(c.send) > 0 {
			continue
		}
		if err := w.Flush(); err != nil {
			newWaiter(context.Background(), farewellGrace).wait(c.done)
			c.fail(lost(err))
			return
		}
	}
}

// A Message is a notification or a request from the daemon.
type Message struct {
	Method    string
	IsRequest bool // it wants an answer: see Conn.Answer
	Params    []any
	id        uint32
}

// Decode stores the first parameter in target, by the rules and the tags of encoding/json.
func (m *Message) Decode(target any) error {
	if len(m.Params) == 0 {
		return fmt.Errorf("kazahana: %s has no parameters", m.Method)
	}
	return assign(m.Params[0], target)
}

// Answer answers a request, with the text of refusal or, if that is nil, with result. An
// error says that nothing was sent.
func (c *Conn) Answer(m *Message, result any, refusal error) error {
	if refusal == nil {
		return c.post(1, m.id, nil, result)
	}
	text := strings.TrimPrefix(refusal.Error(), prefix)
	text = strings.ToValidUTF8(text[:min(len(text), maxRefusal)], "\uFFFD")
	return c.post(1, m.id, []any{0, text}, nil)
}

// Notify sends a notification. An error says that nothing was sent.
func (c *Conn) Notify(method string, params ...any) error {
	return c.post(2, method, params)
}

// post sends a message that gets no answer, if it can be encoded.
func (c *Conn) post(message ...any) error {
	out, err := msgpack.Append(nil, message)
	if err == nil {
		err = c.Err()
	}
	if err != nil {
		return err
	}
	select {
	case c.send <- out:
	case <-c.done: // it was lost with the connection
	}
	return nil
}
