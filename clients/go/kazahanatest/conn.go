package kazahanatest

import (
	"errors"
	"net"
	"strings"
	"sync"

	"github.com/kazahana/kazahana/clients/go/internal/msgpack"
)

// maxMessage is the daemon's limit of a message in bytes.
const maxMessage = 1 << 20

// A Conn is a client's connection to the Fake, for functions of Fake.Handle.
type Conn struct {
	pipe net.Conn
	gone chan struct{} // closed when the client has gone

	mu    sync.Mutex
	queue [][]byte // pending writes; the first is under way
	asked []func(result any, refusal error)
}

// Gone returns a channel that is closed when the client has gone.
func (c *Conn) Gone() <-chan struct{} { return c.gone }

// Notify sends a notification to the client.
func (c *Conn) Notify(method string, params ...any) {
	c.send([]any{2, method, params})
}

// Ask sends a request to the client, and calls answered with the answer, unless the client
// goes before.
func (c *Conn) Ask(method string, params any, answered func(result any, refusal error)) {
	c.mu.Lock()
	c.asked = append(c.asked, answered)
	id := len(c.asked)
	c.mu.Unlock()
	c.send([]any{0, id, method, []any{params}})
}

// send queues a message. It does not wait for the client, which may be calling the Fake.
func (c *Conn) send(message []any) {
	b, err := msgpack.Append(nil, message)
	if err != nil {
		panic("kazahanatest: " + err.Error()) // of a function of Fake.Handle
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queue = append(c.queue, b)
	if len(c.queue) == 1 {
		go c.writeAll()
	}
}

func (c *Conn) writeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) > 0 {
		b := c.queue[0]
		c.mu.Unlock()
		_, _ = c.pipe.Write(b) // an error means that the client has gone
		c.mu.Lock()
		c.queue = c.queue[1:]
	}
}

// answer sends what the function returns.
func (c *Conn) answer(id any, wait func() (any, error)) {
	result, err := wait()
	var refusal any
	if err != nil {
		refusal, result = []any{0, strings.TrimPrefix(err.Error(), "kazahana: ")}, nil
	}
	c.send([]any{1, id, refusal, result})
}

// each calls handle with each message, until the client goes or sends something else.
func (c *Conn) each(handle func(message []any) error) {
	var scan msgpack.Scanner
	var in []byte
	for b := make([]byte, 4096); ; {
		n, err := c.pipe.Read(b)
		in = append(in, b[:n]...)
		for size := 1; size > 0 && err == nil; in = in[size:] {
			if size, err = scan.Scan(in, maxMessage); err == nil && size > 0 {
				r := msgpack.NewReader(in[:size])
				message, _ := r.Value().([]any)
				if err = r.Err(); err == nil && len(message) > 2 {
					err = handle(message)
				}
			}
		}
		if err != nil {
			return
		}
	}
}

// answered takes a client's answer.
func (c *Conn) answered(message []any) error {
	id, ok := message[1].(int64)
	c.mu.Lock()
	if !ok || id < 1 || id > int64(len(c.asked)) || len(message) != 4 || c.asked[id-1] == nil {
		c.mu.Unlock()
		return errors.New("an answer to no request")
	}
	answered := c.asked[id-1]
	c.asked[id-1] = nil
	c.mu.Unlock()
	var refusal error
	if pair, ok := message[2].([]any); ok && len(pair) == 2 {
		text, _ := pair[1].(string)
		refusal = errors.New(text)
	}
	answered(message[3], refusal)
	return nil
}
