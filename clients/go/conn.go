package kazahana

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/kazahana/kazahana/clients/go/internal/msgpack"
)

const (
	maxRequest = 1 << 20 // bytes, as the daemon has it
	maxAnswer  = 4 << 20 // 65,536 IDs as decimal strings are 1.4 MB
	// leastBuffer is what an idle connection keeps for answers, and mostBuffer what it
	// keeps after a large one.
	leastBuffer = 4 << 10
	mostBuffer  = 64 << 10
	// maxWaiting is how many requests wait to be written. A further caller waits, as long
	// as its time allows.
	maxWaiting = 64
	// farewellGrace is how long a failed write waits for the daemon's last word: a daemon
	// that turns a client away sends the reason and closes at once.
	farewellGrace = 100 * time.Millisecond
	maxRefusal    = 1024 // bytes of an error's text that go to the daemon
)

// errExpired is the error of an attempt whose time is up.
var errExpired = errors.New("the time is up")

// A Conn is one connection to the daemon. Client.Open returns one, for methods whose
// effect ends with the connection. Calls may be concurrent: they are pipelined.
type Conn struct {
	nc   net.Conn
	told func(*Conn, *Message) // called for messages that are not answers; may be nil
	send chan []byte           // to the writing goroutine
	done chan struct{}         // closed by fail, once
	work sync.WaitGroup        // the reading and the writing goroutine

	mu       sync.Mutex
	lastID   uint32
	waiting  map[uint32]*pending
	idle     []*pending // to be used again
	farewell error      // an answer with msgid 0: the daemon's last word
	err      error      // set before done is closed
}

// pending is a call that waits for its answer. The goroutine that takes it out of the
// map sets value and err, and then sends to done.
type pending struct {
	target any
	value  any // the result, where the caller is to store it in target
	err    error
	done   chan struct{} // has room for one
	timer  *time.Timer
}

// NewConn returns a Conn over a connection that is there already, for programs that talk
// with a client as the daemon does, such as package kazahanatest. told is that of
// Client.Open.
func NewConn(nc net.Conn, told func(*Conn, *Message)) *Conn {
	c := &Conn{nc: nc, told: told, send: make(chan []byte, maxWaiting), done: make(chan struct{}), waiting: map[uint32]*pending{}}
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
// Client.Call. An error of the connection is a *DaemonUnavailableError.
func (c *Conn) Call(ctx context.Context, method string, result any, params ...any) error {
	l := newLimit(ctx, MaxTimeout)
	err := c.call(l, &request{method: method, params: params}, result)
	if err == errExpired {
		return l.end(method)
	}
	return err
}

// call sends a request, and waits for its answer.
func (c *Conn) call(l limit, r *request, target any) error {
	p, id, err := c.register(target)
	if err != nil {
		return err
	}
	out, err := r.encode(id, l)
	if err != nil {
		c.take(id)
		return err
	}
	if left := time.Until(l.deadline); p.timer == nil {
		p.timer = time.NewTimer(left)
	} else {
		p.timer.Reset(left)
	}
	send, expired := c.send, false
	for waits := true; waits; {
		select {
		case send <- out:
			send = nil
		case <-p.done: // fail answers every call, too
			waits = false
		case <-l.ctx.Done():
			waits, expired = false, true
		case <-p.timer.C:
			waits, expired = false, true
		}
	}
	if expired {
		if c.take(id) != nil {
			p.timer.Stop()
			return errExpired
		}
		<-p.done // the answer is being delivered
	}
	err = p.err
	if value := p.value; value != nil && err == nil {
		if bad := msgpack.Assign(value, target); bad != nil {
			err = unreadable(bad)
		}
	}
	c.recycle(p)
	return err
}

// register reserves a msgid that no waiting call has. It never uses 0, with which the
// daemon answers messages that it could not read.
func (c *Conn) register(target any) (*pending, uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, 0, c.err
	}
	for {
		c.lastID++
		if _, taken := c.waiting[c.lastID]; c.lastID != 0 && !taken {
			break
		}
	}
	var p *pending
	if last := len(c.idle) - 1; last >= 0 {
		p, c.idle = c.idle[last], c.idle[:last]
	} else {
		p = &pending{done: make(chan struct{}, 1)}
	}
	p.target = target
	c.waiting[c.lastID] = p
	return p, c.lastID, nil
}

// recycle keeps an answered call for the next one. A timer that has fired is not used
// again: its channel may not be empty.
func (c *Conn) recycle(p *pending) {
	if !p.timer.Stop() {
		p.timer = nil
	}
	p.target, p.value, p.err = nil, nil, nil
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle) < maxWaiting {
		c.idle = append(c.idle, p)
	}
}

// take removes a waiting call, so that it gets exactly one answer.
func (c *Conn) take(id uint32) *pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.waiting[id]
	delete(c.waiting, id)
	return p
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
	waiting := c.waiting
	c.err, c.waiting = reason, nil
	c.mu.Unlock()
	_ = c.nc.Close()
	close(c.done)
	for _, p := range waiting {
		p.err = reason
		p.done <- struct{}{}
	}
}

func lost(err error) error {
	return &DaemonUnavailableError{Err: fmt.Errorf("connection lost: %w", err)}
}

func unreadable(err error) error {
	return &Error{Code: ErrProtocol, Message: "unreadable answer: " + err.Error()}
}

// readAll hands answers to their calls until the stream ends.
func (c *Conn) readAll() {
	defer c.work.Done()
	in, have := make([]byte, leastBuffer), 0
	var scan msgpack.Scanner
	for {
		n, err := c.nc.Read(in[have:])
		have += n
		used := 0
		for {
			size, bad := scan.Scan(in[used:have], maxAnswer)
			if bad == nil && size > 0 {
				bad = c.deliver(in[used : used+size])
			}
			if bad != nil {
				c.fail(&Error{Code: ErrProtocol, Message: "the peer is not a kazahana daemon: " + bad.Error()})
				return
			}
			if used += size; size == 0 {
				break
			}
		}
		if err != nil {
			c.fail(lost(err))
			return
		}
		have = copy(in, in[used:have])
		switch {
		case have == len(in):
			in = append(in, make([]byte, len(in))...)
		case have == 0 && len(in) > mostBuffer:
			in = make([]byte, leastBuffer)
		}
	}
}

// deliver hands one message to its call, or to the one who is told.
func (c *Conn) deliver(message []byte) error {
	r := msgpack.NewReader(message)
	switch n, kind := r.Array(), r.Int(); {
	case r.Err() == nil && n == 4 && kind == 1:
		return c.answer(&r)
	case r.Err() == nil && (n == 4 && kind == 0 || n == 3 && kind == 2):
		m := &Message{IsRequest: kind == 0}
		if m.IsRequest {
			m.id = uint32(r.Int())
		}
		m.Method = r.Text()
		m.Params, _ = r.Value().([]any)
		if r.Err() == nil && c.told != nil {
			c.told(c, m)
		}
		return r.Err()
	}
	return errors.New("an array that is no message")
}

// answer hands an answer to its call.
func (c *Conn) answer(r *msgpack.Reader) error {
	id := uint32(r.Int())
	refusal := readRefusal(r)
	if err := r.Err(); err != nil {
		return err
	}
	if id == 0 && refusal != nil {
		c.mu.Lock()
		c.farewell = refusal
		c.mu.Unlock()
	}
	p := c.take(id)
	if p == nil {
		return nil // its call gave up, or never was
	}
	if p.err = refusal; refusal == nil {
		if p.value, p.err = readResult(r, p.target); p.err == nil && r.Err() != nil {
			p.err = unreadable(r.Err())
		}
	}
	p.done <- struct{}{}
	return nil
}

// readRefusal reads the error of an answer: nil, [kind, text] or, from other servers, a
// text.
func readRefusal(r *msgpack.Reader) error {
	if r.Nil() {
		return nil
	}
	refusal := r.Value()
	if pair, ok := refusal.([]any); ok && len(pair) == 2 {
		refusal = pair[1]
	}
	switch text := refusal.(type) {
	case string:
		return parseError(text)
	case []byte:
		return parseError(string(text))
	}
	return parseError("the answer's error has an unknown form")
}

// readResult stores a result of a frequent type in target, and returns any other.
func readResult(r *msgpack.Reader, target any) (value any, err error) {
	switch t := target.(type) {
	case nil:
		return nil, nil
	case *ID:
		if *t = ID(r.Int()); r.Err() == nil && *t <= 0 {
			return nil, impossible(*t)
		}
	case *[]ID:
		ids, last := make([]ID, r.Array()), ID(0)
		for i := range ids {
			if ids[i] = ID(r.Int()); r.Err() == nil && ids[i] <= last {
				return nil, impossible(ids[i])
			}
			last = ids[i]
		}
		*t = ids
	case *[]run:
		last := ID(0)
		for n := r.Array(); n > 0 && r.Err() == nil; n-- {
			id := ID(r.Int())
			if end := len(*t) - 1; r.Err() == nil && id <= last {
				return nil, impossible(id)
			} else if end >= 0 && id == last+1 {
				(*t)[end].count++
			} else {
				*t = append(*t, run{id, 1})
			}
			last = id
		}
	case *string:
		*t = r.Text()
	default:
		return r.Value(), nil
	}
	return nil, nil
}

// writeAll writes requests until the connection ends, all waiting ones at once.
func (c *Conn) writeAll() {
	defer c.work.Done()
	for {
		var batch []byte
		select {
		case batch = <-c.send:
		case <-c.done:
			return
		}
		for more := true; more && len(batch) < mostBuffer; {
			select {
			case out := <-c.send:
				batch = append(batch, out...)
			default:
				more = false
			}
		}
		if _, err := c.nc.Write(batch); err != nil {
			newLimit(context.Background(), farewellGrace).wait(c.done)
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
	return msgpack.Assign(m.Params[0], target)
}

// Answer answers a request, with the text of refusal or, if that is nil, with result. An
// error says that nothing was sent.
func (c *Conn) Answer(m *Message, result any, refusal error) error {
	b := append([]byte{0x94, 1}, msgpack.AppendUint(nil, uint64(m.id))...)
	if refusal == nil {
		return c.post(msgpack.Append(append(b, 0xc0), result))
	}
	text := strings.TrimPrefix(refusal.Error(), prefix)
	text = strings.ToValidUTF8(text[:min(len(text), maxRefusal)], "\uFFFD")
	return c.post(append(msgpack.AppendString(append(b, 0x92, 0), text), 0xc0), nil)
}

// Notify sends a notification. An error says that nothing was sent.
func (c *Conn) Notify(method string, params ...any) error {
	return c.post(msgpack.Append(msgpack.AppendString([]byte{0x93, 2}, method), params))
}

// post sends a message that gets no answer, if it could be encoded.
func (c *Conn) post(message []byte, err error) error {
	if err == nil {
		err = c.Err()
	}
	if err != nil {
		return err
	}
	select {
	case c.send <- message:
	case <-c.done: // it was lost with the connection
	}
	return nil
}
