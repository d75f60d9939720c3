package redistest

import (
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// Proxy passes bytes between clients and a server, until it is told to lose an answer.
type Proxy struct {
	Sock string
	then atomic.Pointer[func()]
	wg   sync.WaitGroup
}

// NewProxy starts a proxy that ends with the test.
func NewProxy(tb testing.TB, s *Server) *Proxy {
	tb.Helper()
	p := &Proxy{Sock: filepath.Join(s.Dir, "proxy.sock")}
	l, err := net.Listen("unix", p.Sock)
	if err != nil {
		tb.Fatal(err)
	}
	p.wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", s.Sock)
			if err != nil {
				client.Close()
				continue
			}
			end := func() { client.Close(); server.Close() }
			p.wg.Go(func() { defer end(); _, _ = io.Copy(server, client) })
			p.wg.Go(func() { defer end(); p.answer(client, server) })
		}
	})
	tb.Cleanup(func() { l.Close(); p.wg.Wait() })
	return p
}

// Lose has the proxy lose the next answer with its connection, after it has called then.
func (p *Proxy) Lose(then func()) { p.then.Store(&then) }

func (p *Proxy) answer(client, server net.Conn) {
	b := make([]byte, 64*1024)
	for {
		n, err := server.Read(b)
		if err != nil {
			return
		}
		if then := p.then.Swap(nil); then != nil {
			(*then)()
			return
		}
		if _, err := client.Write(b[:n]); err != nil {
			return
		}
	}
}
