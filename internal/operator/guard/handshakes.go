package guard

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/threads"
)

// A handshake of TLS costs as much as several requests, and the runtime serves goroutines in the
// order in which they become ready: a herd of new connections would be before everybody else's
// requests. So few handshakes are worked at, and peers take turns. A turn lasts from the client's
// greeting to the server's answer to it, in which nothing is waited for. Whatever the client sends
// next needs another turn where it is dear too: another greeting, because the first one lacked a
// key that the server can use; the client's certificate, or its key in TLS 1.2.

// atOnce is how many handshakes are worked at. One of the runtime's processors is left for
// everything else: while all are busy, the runtime looks only every 10 ms whether requests have
// come.
func atOnce() int { return max(1, runtime.GOMAXPROCS(0)-1) }

// gate makes the server's handshakes wait for their turns.
func (g *Guard) gate(server *http.Server) {
	if server.TLSConfig == nil {
		return
	}
	config := server.TLSConfig.Clone()
	next := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (chosen *tls.Config, err error) {
		c, ok := hello.Conn.(*conn)
		if ok {
			if err := c.beginHandshake(hello.Context()); err != nil {
				return nil, err
			}
			if stoppedSending(c.Conn) { // while it waited
				return nil, net.ErrClosed
			}
			c.letOthersFirst()
		}
		if next != nil {
			chosen, err = next(hello)
		}
		if ok {
			used := cmp.Or(chosen, config)
			c.dear.Store(used.ClientAuth != tls.NoClientCert || !slices.Contains(hello.SupportedVersions, tls.VersionTLS13))
		}
		return chosen, err // nil: the server's own configuration
	}
	server.TLSConfig = config
}

// letOthersFirst makes threads that have just waited go before this one, until the goroutine of
// the handshake calls asOthers. Otherwise, on one processor, each step of a request could wait for
// a handshake. Where nothing is written, the thread ends with the goroutine.
func (c *conn) letOthersFirst() {
	runtime.LockOSThread()
	threads.Slice(threads.Long)
	c.behind.Store(true)
}

func (c *conn) asOthers() {
	if c.behind.Load() {
		c.behind.Store(false)
		threads.Slice(threads.Normal)
		runtime.UnlockOSThread()
	}
}

// stoppedSending reports whether the client has closed its sending side, or all of the
// connection: it cannot end its handshake.
func stoppedSending(nc net.Conn) (gone bool) {
	socket, ok := innermost(nc).(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	_ = raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		gone = err == nil && n == 0 || errors.Is(err, unix.ECONNRESET)
	})
	return gone
}

// beginHandshake waits for the connection's turn, or its end.
func (c *conn) beginHandshake(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	g := c.guard
	g.mu.Lock()
	c.abandon = cancel
	gone := c.gone
	g.mu.Unlock()
	if gone {
		return net.ErrClosed
	}
	if err := g.handshakes.Enter(ctx, c.peer.id); err != nil {
		return err
	}
	c.shaking.Store(true)
	if err := ctx.Err(); err != nil { // Close may have been here before it was shaking
		c.endHandshake()
		return err
	}
	return nil
}

// endHandshake ends the connection's turn, if it has one.
func (c *conn) endHandshake() {
	if c.shaking.Load() && c.shaking.Swap(false) {
		c.guard.handshakes.Leave()
	}
}

// Read implements net.Conn. Each part of what needs another turn has one, which ends when the next
// part is waited for. net/http reads during a request as well: when the request begins while a read
// is under way, the read has no turn, which would last as long as the request.
func (c *conn) Read(b []byte) (int, error) {
	if !c.more.Load() {
		return c.ahead.Read(c.Conn, b)
	}
	c.endHandshake()
	n, err := c.ahead.Read(c.Conn, b)
	if n > 0 && c.more.Load() {
		if err := c.beginHandshake(context.Background()); err != nil {
			return 0, err
		}
		if !c.more.Load() { // the request began while it waited, and found no turn to end
			c.endHandshake()
		}
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	c.asOthers() // nobody else writes before the server's answer to the greeting
	if c.shaking.Load() {
		c.more.Store(asksAgain(b) || c.dear.Swap(false))
		c.endHandshake()
	}
	return c.Conn.Write(b)
}

// retry takes the place of the server's random bytes in a request for another greeting
// (RFC 8446, section 4.1.3).
var retry = sha256.Sum256([]byte("HelloRetryRequest"))

// asksAgain reports whether the record is a request for another greeting.
func asksAgain(record []byte) bool {
	const (
		handshake, serverHello = 22, 2
		header, at             = 5, 5 + 4 + 2
	)
	return len(record) >= at+len(retry) && record[0] == handshake && record[header] == serverHello &&
		bytes.Equal(record[at:at+len(retry)], retry[:])
}
