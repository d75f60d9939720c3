package clienttest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/clients/go/internal/msgpack"
)

// Script is a scripted daemon's handling of one connection after another.
type Script func(net.Conn)

// Scripted returns a function that connects to a daemon. The n-th connection is the n-th
// script's. The last one serves all that follow. The client must end before the test.
func Scripted(t *testing.T, scripts ...Script) func(context.Context) (net.Conn, error) {
	var mu sync.Mutex
	var running sync.WaitGroup
	t.Cleanup(running.Wait) // after the client is closed
	return func(context.Context) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		run := scripts[0]
		if len(scripts) > 1 {
			scripts = scripts[1:]
		}
		near, far := net.Pipe()
		running.Add(1)
		go func() {
			defer running.Done()
			defer far.Close()
			run(far)
		}()
		return near, nil
	}
}

// Answering serves requests, until answer says that the connection is over.
func Answering(answer func(*Peer, *Message) bool) Script {
	return func(conn net.Conn) {
		p := NewPeer(conn)
		for m := p.Next(); m != nil && answer(p, m); m = p.Next() {
		}
	}
}

// Refusing answers every request with the error's text.
func Refusing(text string) Script {
	return Answering(func(p *Peer, m *Message) bool { return p.Refuse(m.ID, text) })
}

// Number answers every request with a number.
func Number(n uint64) Script {
	return Answering(func(p *Peer, m *Message) bool { return p.Reply(m.ID, n) })
}

// Text is the text of an error on the wire; details are keys and values.
func Text(code, message string, details ...any) string {
	text := strings.TrimSuffix(code+": "+message, " ")
	for i := 0; i < len(details); i += 2 {
		value := fmt.Sprint(details[i+1])
		if strings.ContainsAny(value, ` ="`) {
			value = strconv.Quote(value)
		}
		text += fmt.Sprintf(" %v=%s", details[i], value)
	}
	return text
}

// Peer is a daemon's end of a connection; the test scripts its every word.
type Peer struct {
	conn net.Conn
	in   *msgpack.Reader
}

// NewPeer returns the Peer of a connection.
func NewPeer(conn net.Conn) *Peer { return &Peer{conn, msgpack.NewReader(conn)} }

// Message is a request or an answer from the client.
type Message struct {
	IsAnswer bool
	ID       int64
	Method   string // of a request
	Params   []any
	Refusal  error // of an answer
	Result   any
}

// Next returns the next message, or nil when the client has gone.
func (p *Peer) Next() *Message {
	p.in.Next(1 << 20)
	all, ok := p.in.Value().([]any)
	if !ok || p.in.Err() != nil {
		return nil
	}
	return message(all)
}

func message(all []any) *Message {
	m := &Message{IsAnswer: all[0] == int64(1)}
	m.ID = all[1].(int64)
	if !m.IsAnswer {
		m.Method, m.Params = all[2].(string), all[3].([]any)
		return m
	}
	if pair, ok := all[2].([]any); ok {
		m.Refusal = errors.New(pair[1].(string))
	}
	m.Result = all[3]
	return m
}

// Options returns the last parameter, a map.
func (m *Message) Options() map[string]any {
	options, _ := m.Params[len(m.Params)-1].(map[string]any)
	return options
}

func (p *Peer) write(message ...any) bool {
	b, err := msgpack.Append(nil, message)
	if err != nil {
		panic(err)
	}
	_, err = p.conn.Write(b)
	return err == nil
}

// Reply answers with a result, and reports whether the client was there.
func (p *Peer) Reply(id int64, result any) bool { return p.write(1, id, nil, result) }

// Refuse answers with an error.
func (p *Peer) Refuse(id int64, text string) bool { return p.write(1, id, []any{0, text}, nil) }

// Ask sends a request.
func (p *Peer) Ask(id int64, method string, params any) bool {
	return p.write(0, id, method, []any{params})
}
