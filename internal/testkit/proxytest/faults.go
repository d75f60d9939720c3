package proxytest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/kazahana/kazahana/internal/testkit/must"
	"github.com/kazahana/kazahana/internal/testkit/ring"
)

// Proxy passes bytes between clients and a server over TCP, records them, and
// makes the faults of a network. It is safe for concurrent use.
type Proxy struct {
	network, address string // of the server

	mu       sync.Mutex
	changed  sync.Cond // mode
	mode     proxyMode
	cutAt    string       // in the mode cutting
	lose     func()       // nil: no answer is lost
	listener net.Listener // nil while it is down
	conns    map[net.Conn]bool
	recorded []*bytes.Buffer // two per connection: what the client sends, and the answers
	wg       sync.WaitGroup
	addr     string // never changes
}

type proxyMode int

const (
	passing proxyMode = iota
	mute
	cutting
	holding
)

// New listens in front of the server until the test ends.
func New(tb testing.TB, network, address string) *Proxy {
	tb.Helper()
	// Such a port stays free while the proxy is down.
	p := &Proxy{network: network, address: address, conns: map[net.Conn]bool{}, addr: fmt.Sprintf("127.0.0.1:%d", ring.FreePort(tb))}
	p.changed.L = &p.mu
	must.Succeed(tb, p.Up())
	tb.Cleanup(func() {
		p.Down()
		p.wg.Wait()
	})
	return p
}

// Addr is where the proxy listens, host:port.
func (p *Proxy) Addr() string { return p.addr }

// Up has the proxy accept connections, and pass everything on.
func (p *Proxy) Up() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		return err
	}
	p.listener, p.mode = l, passing
	p.wg.Go(func() { p.accept(l) })
	return nil
}

// Down refuses connections and closes those there are.
func (p *Proxy) Down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
	for c := range p.conns {
		c.Close()
	}
	p.set(passing)
}

func (p *Proxy) set(mode proxyMode) {
	p.mode = mode
	p.changed.Broadcast()
}

func (p *Proxy) become(mode proxyMode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(mode)
}

// Pass passes on everything, also held bytes.
func (p *Proxy) Pass() { p.become(passing) }

// Mute drops what clients send: connections are accepted, and never answered.
func (p *Proxy) Mute() { p.become(mute) }

// CutAt waits until a client sends the text, drops it, and closes the connection.
func (p *Proxy) CutAt(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAt = text
	p.set(cutting)
}

// Hold keeps answers back until Pass.
func (p *Proxy) Hold() { p.become(holding) }

// Lose loses the next answer with its connection, after it has called then.
func (p *Proxy) Lose(then func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = then
}

// Count is how often the text was seen, in either direction.
func (p *Proxy) Count(text string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.recorded {
		n += bytes.Count(r.Bytes(), []byte(text))
	}
	return n
}

// Sent is how often clients sent the text.
func (p *Proxy) Sent(text string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := 0; i < len(p.recorded); i += 2 {
		n += bytes.Count(p.recorded[i].Bytes(), []byte(text))
	}
	return n
}

// Recorded is everything that was seen, a stream after the other.
func (p *Proxy) Recorded() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []byte
	for _, r := range p.recorded {
		all = append(all, r.Bytes()...)
	}
	return all
}

func (p *Proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial(p.network, p.address)
		if err != nil {
			client.Close()
			continue
		}
		to, back := p.keep(l, client, server)
		if to == nil {
			continue
		}
		var once sync.Once
		end := func() {
			once.Do(func() {
				client.Close()
				server.Close()
				p.mu.Lock()
				defer p.mu.Unlock()
				delete(p.conns, client)
				delete(p.conns, server)
				p.changed.Broadcast()
			})
		}
		p.wg.Go(func() {
			defer end()
			copyBytes(server, client, func(b []byte) (bool, error) { return p.request(to, b) })
		})
		p.wg.Go(func() {
			defer end()
			copyBytes(client, server, func(b []byte) (bool, error) { return p.answer(client, back, b) })
		})
	}
}

// keep remembers the connections and gives each direction a record, unless the
// proxy has gone down meanwhile.
func (p *Proxy) keep(l net.Listener, client, server net.Conn) (to, back *bytes.Buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != l {
		client.Close()
		server.Close()
		return nil, nil
	}
	p.conns[client], p.conns[server] = true, true
	to, back = &bytes.Buffer{}, &bytes.Buffer{}
	p.recorded = append(p.recorded, to, back)
	return to, back
}

var errCut = errors.New("the connection is cut")

// copyBytes passes on what admit lets pass.
func copyBytes(to, from net.Conn, admit func([]byte) (pass bool, err error)) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		pass, err := admit(b[:n])
		if err != nil {
			return
		}
		if !pass {
			continue
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

func (p *Proxy) request(record *bytes.Buffer, b []byte) (pass bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	record.Write(b)
	if p.mode == cutting && bytes.Contains(b, []byte(p.cutAt)) {
		return false, errCut
	}
	return p.mode != mute, nil
}

func (p *Proxy) answer(client net.Conn, record *bytes.Buffer, b []byte) (pass bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.mode == holding && p.conns[client] {
		p.changed.Wait()
	}
	if !p.conns[client] {
		return false, errCut
	}
	if then := p.lose; then != nil {
		p.lose = nil
		p.mu.Unlock()
		then()
		p.mu.Lock()
		return false, errCut
	}
	record.Write(b)
	return p.mode != mute, nil
}
