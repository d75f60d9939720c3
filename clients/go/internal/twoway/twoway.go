// Package twoway has connections over which both sides ask: those of placement, and the
// daemon's end of those of the fakes.
package twoway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	kazahana "github.com/kazahana/kazahana/clients/go"
	"github.com/kazahana/kazahana/clients/go/internal/msgpack"
)

const (
	maxMessage = 4 << 20 // bytes
	maxRefusal = 1024    // bytes of an error's text
	// maxUnsent is how many messages wait to be written. The sender of a further one waits.
	maxUnsent = 64
)

// A Conn is a connection over which both sides ask. Calls may be concurrent.
type Conn struct {
	nc   net.Conn
	told func(*Conn, *Message)
	send chan []byte   // to the goroutine that writes
	done chan struct{} // closed by fail, once
	work sync.WaitGroup

	mu      sync.Mutex
	lastID  uint32
	waiting map[uint32]chan<- answer
	err     error // set before done is closed
}

type answer struct {
	result any
	err    error
}

// New returns the Conn of a connection. told is called for each notification and each request
// of the other side, one after another; it must not wait for the connection, and may be nil.
func New(nc net.Conn, told func(*Conn, *Message)) *Conn {
	c := &Conn{nc: nc, told: told, send: make(chan []byte, maxUnsent), done: make(chan struct{}), waiting: map[uint32]chan<- answer{}}
	c.work.Add(2)
	go c.readAll()
	go c.writeAll()
	return c
}

// Close fails the calls that wait with ErrClosed, and returns when the goroutines of the
// connection have ended. The function that is told of messages must not call it.
func (c *Conn) Close() error {
	c.fail(kazahana.ErrClosed)
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

// fail ends the connection for the given reason. Only the first reason counts.
func (c *Conn) fail(reason error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	for _, waiting := range c.waiting {
		waiting <- answer{err: reason} // which has room for it
	}
	c.err, c.waiting = reason, nil
	c.mu.Unlock()
	_ = c.nc.Close()
	close(c.done)
}

// Call calls a method of the other side, as long as ctx allows, and stores its result by the
// rules and the tags of encoding/json.
func (c *Conn) Call(ctx context.Context, method string, result any, params ...any) error {
	began, answered := time.Now(), make(chan answer, 1)
	id, err := c.register(answered)
	if err != nil {
		return err
	}
	defer c.forget(id)
	out, err := msgpack.Append(nil, []any{msgpack.Request, int64(id), method, params})
	if err != nil {
		return err
	}
	for send := c.send; ; {
		select {
		case send <- out:
			send = nil
		case a := <-answered:
			if a.err != nil {
				return a.err
			}
			if err := msgpack.Assign(a.result, result); err != nil {
				return protocolError("the result of the answer: %v", err)
			}
			return nil
		case <-ctx.Done():
			if ctx.Err() == context.Canceled {
				return fmt.Errorf("kazahana: %s: %w", method, ctx.Err())
			}
			late := &kazahana.Error{Code: kazahana.ErrTimeout, Message: "no answer to " + method + " from the daemon"}
			return &kazahana.RequestTimeoutError{Waited: time.Since(began), Err: late}
		}
	}
}

// register reserves an ID that no waiting call has. It never uses 0, with which the daemon
// answers messages that it could not read.
func (c *Conn) register(waiting chan<- answer) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	for c.lastID++; c.lastID == 0 || c.waiting[c.lastID] != nil; {
		c.lastID++
	}
	c.waiting[c.lastID] = waiting
	return c.lastID, nil
}

func (c *Conn) forget(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
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
		c.fail(&kazahana.DaemonUnavailableError{Err: fmt.Errorf("connection lost: %w", err)})
	}
}

// read reads one message.
func (c *Conn) read(r *msgpack.Reader) {
	kind, id := r.Head(maxMessage)
	if kind == msgpack.Answer {
		text, isRefused := r.Refusal()
		a := answer{result: r.Value()}
		if isRefused {
			a.err = kazahana.ParseError(text)
		}
		if r.Err() == nil {
			c.answered(id, a)
		}
		return
	}
	m := &Message{IsRequest: kind == msgpack.Request, id: id}
	m.Method, _ = r.Value().(string)
	m.Params, _ = r.Value().([]any)
	if r.Err() == nil && c.told != nil {
		c.told(c, m)
	}
}

// answered hands an answer to the call that waits for it. One with the ID 0 ends the connection.
func (c *Conn) answered(id uint32, a answer) {
	if id == 0 && a.err != nil {
		c.fail(a.err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if waiting := c.waiting[id]; waiting != nil {
		delete(c.waiting, id)
		waiting <- a
	}
}

// writeAll writes messages until the connection ends. After a failure the reading goroutine
// ends it: the other side's last word may still be there to read.
func (c *Conn) writeAll() {
	defer c.work.Done()
	for {
		select {
		case out := <-c.send:
			if _, err := c.nc.Write(out); err != nil {
				return
			}
		case <-c.done:
			return
		}
	}
}

// A Message is a notification or a request of the other side.
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
	return msgpack.Assign(m.Params[0], target)
}

// Answer answers a request, with the text of refusal or, if that is nil, with result. An
// error says that nothing was sent.
func (c *Conn) Answer(m *Message, result any, refusal error) error {
	if refusal == nil {
		return c.post(msgpack.Answer, int64(m.id), nil, result)
	}
	text := strings.TrimPrefix(refusal.Error(), "kazahana: ") // which is not on the wire
	text = strings.ToValidUTF8(text[:min(len(text), maxRefusal)], "\uFFFD")
	return c.post(msgpack.Answer, int64(m.id), []any{0, text}, nil)
}

// Notify sends a notification. An error says that nothing was sent.
func (c *Conn) Notify(method string, params ...any) error {
	return c.post(msgpack.Notification, method, params)
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

func protocolError(format string, args ...any) error {
	return &kazahana.Error{Code: kazahana.ErrProtocol, Message: fmt.Sprintf(format, args...)}
}
