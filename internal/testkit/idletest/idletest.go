// Package idletest tests that a server ends connections that do nothing: they take places that
// newcomers need.
package idletest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	// soon is how long a connection may do nothing.
	soon    = 15 * time.Second
	request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
)

// Test runs a server with one connection that does nothing. serve answers any GET request until its
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
	near, far := net.Pipe()
	defer near.Close()
	l.made <- far
	in := bufio.NewReader(near)
	if asks {
		_, err := io.WriteString(near, request)
		var res *http.Response
		if err == nil {
			res, err = http.ReadResponse(in, nil)
		}
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	_ = near.SetReadDeadline(time.Now().Add(soon))
	if _, err := io.Copy(io.Discard, in); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after %v it is still open", soon)
	}
}

// listener is a listener in memory: time stands still in a bubble while a goroutine waits for a
// socket.
type listener struct {
	made   chan net.Conn
	closed chan struct{}
	once   sync.Once
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
