// Package herdtest tests that a server answers a newcomer soon, although a herd of connections
// that do nothing has taken all its places.
package herdtest

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	size    = 5000             // connections of the herd
	soon    = 15 * time.Second // for the newcomer, from its first try
	pause   = time.Second      // between two tries
	request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
)

// herd are the addresses of the herd: so many that all places are taken, and not only those of
// one address.
var herd = []netip.Addr{
	netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3"), netip.MustParseAddr("127.0.0.4"), netip.MustParseAddr("127.0.0.5"),
}

var newcomer = netip.MustParseAddr("127.0.0.9")

// Test runs a server against each herd. serve answers any GET request until its context is done,
// and has fewer places than a herd has connections. Time is a synctest bubble's, in which serve
// is called.
func Test(t *testing.T, serve func(t *testing.T, ctx context.Context, l net.Listener) error) {
	for name, asks := range map[string]bool{"idle after an answer": true, "silent": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { stampede(t, serve, asks) })
		})
	}
}

func stampede(t *testing.T, serve func(*testing.T, context.Context, net.Listener) error, asks bool) {
	l := &listener{made: make(chan net.Conn), closed: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() {
		if err := serve(t, ctx, l); err != nil {
			t.Error(err)
		}
	})
	defer served.Wait()
	defer stop()
	defer l.hangUp()
	answered, start := 0, time.Now()
	for i := range size {
		c := l.dial(herd[i%len(herd)])
		if asks && ask(c) {
			answered++
		}
	}
	synctest.Wait()
	if asks && (answered == 0 || answered == size) {
		t.Fatalf("%d of the herd's %d connections have a place", answered, size)
	}
	began := time.Now()
	for tries := 1; !ask(l.dial(newcomer)); tries++ {
		if waited := time.Since(began); waited > soon {
			t.Fatalf("%d tries in %v", tries, waited)
		}
		time.Sleep(pause)
	}
	if time.Since(began) == 0 {
		t.Fatalf("there was a place for the newcomer: %d of the herd were answered in %v", answered, began.Sub(start))
	}
	t.Logf("%d of the herd were answered, and the newcomer after %v", answered, time.Since(began))
}

// ask makes a request, and reports whether it was answered. A connection that is turned away
// ends, or is told so.
func ask(c net.Conn) bool {
	if _, err := io.WriteString(c, request); err != nil {
		return false
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return err == nil && res.StatusCode != http.StatusServiceUnavailable
}

// listener is a listener in memory: time stands still in a bubble while a goroutine waits for a
// socket.
type listener struct {
	made   chan net.Conn
	closed chan struct{}
	once   sync.Once
	all    []net.Conn
}

func (l *listener) dial(from netip.Addr) net.Conn {
	near, far := net.Pipe()
	l.all = append(l.all, near)
	l.made <- peer{far, from}
	return near
}

// hangUp closes the clients' ends.
func (l *listener) hangUp() {
	for _, c := range l.all {
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.made:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error { l.once.Do(func() { close(l.closed) }); return nil }

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return address(netip.MustParseAddr("127.0.0.1")) }

// peer is a connection that comes from an address.
type peer struct {
	net.Conn
	from netip.Addr
}

// RemoteAddr implements net.Conn.
func (p peer) RemoteAddr() net.Addr { return address(p.from) }

func address(of netip.Addr) net.Addr { return net.TCPAddrFromAddrPort(netip.AddrPortFrom(of, 1)) }
