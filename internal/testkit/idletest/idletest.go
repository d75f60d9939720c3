// Package idletest tests that connections that do nothing keep no newcomer from a server for long.
package idletest

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	// crowd is how many connections do nothing, and soon when a newcomer is answered all the same.
	crowd   = 5000
	soon    = 15 * time.Second
	request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
)

// Test runs a server with a crowd of connections that do nothing. serve answers any GET request until its
// context is done. Time is a synctest bubble's, in which serve is called.
func Test(t *testing.T, serve func(t *testing.T, ctx context.Context, l net.Listener) error) {
	for name, asks := range map[string]bool{"idle after an answer": true, "silent": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { idles(t, serve, asks) })
		})
	}
}

func idles(t *testing.T, serve func(*testing.T, context.Context, net.Listener) error, asks bool) {
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
	answered := 0
	for range crowd {
		c := l.dial()
		defer c.Close()
		if asks && ask(c) {
			answered++
		}
	}
	if asks && (answered == 0 || answered == crowd) {
		t.Errorf("%d of the crowd were answered: it does not fill the server", answered)
	}
	time.Sleep(soon)
	c := l.dial()
	defer c.Close()
	if !ask(c) {
		t.Errorf("after %v a newcomer is not answered", soon)
	}
}

// ask sends a request, and reports whether it was answered.
func ask(c net.Conn) bool {
	if _, err := io.WriteString(c, request); err != nil {
		return false
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err == nil {
		_, err = io.Copy(io.Discard, res.Body)
	}
	return err == nil
}

// listener is a listener in memory: time stands still in a bubble while a goroutine waits for a
// socket.
type listener struct {
	made   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// dial connects.
func (l *listener) dial() net.Conn {
	near, far := net.Pipe()
	l.made <- far
	return near
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
func (l *listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
