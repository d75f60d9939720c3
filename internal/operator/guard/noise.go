package guard

import (
	"errors"
	"sync"
	"time"
)

// What a connection may send that is no request: frames of HTTP/2 that only make work, such
// as pings, settings and resets, or a head without end. Honest ones are few.
const (
	// NoiseAtOnce may be sent before the first request, and after each. A handshake, the
	// longest head, and what HTTP/2 sends of a body before its request begins fit.
	NoiseAtOnce = 2 * Window
	// readAfterHandler is what net/http reads over HTTP/1 of a body that the handler has not
	// read, before it writes the answer: its maxPostHandlerReadBytes.
	readAfterHandler = 256 << 10
	// noisePerSecond is gained by waiting.
	noisePerSecond = 1 << 10
	// Window is the most that a server of HTTP/2 may let a connection send unasked.
	Window = 64 << 10
	// PerRequest is what each request may bring: no body may be longer.
	PerRequest = 128 << 10
	// answersPerNoise: a peer that reads so many bytes of answers may send one byte for them,
	// as HTTP/2 does to say that they have come.
	answersPerNoise = 8
)

var errNoise = errors.New("guard: the connection sends much, and asks for nothing")

// noise is how much a connection may still send until its next request.
type noise struct {
	mu   sync.Mutex
	left int
	busy int // requests under way
	rest int // of the last request's body, at most
	at   time.Time
}

// most is the greatest that is left. mu is held.
func (n *noise) most() int { return NoiseAtOnce + n.busy*PerRequest + n.rest }

// gain is for answers, and for the time. mu is held.
func (n *noise) gain(bytes int) { n.left = min(n.left+bytes, n.most()) }

// read counts what has come, and reports whether it was too much.
func (n *noise) read(bytes int, now time.Time) (over bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gain(int(min(now.Sub(n.at), time.Hour).Milliseconds() * noisePerSecond / 1000))
	n.at = now
	n.left -= bytes
	return n.left < 0
}

func (n *noise) wrote(bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gain(bytes / answersPerNoise)
}

// request counts one that begins, or ends.
func (n *noise) request(by int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.busy += by
	if by > 0 {
		n.rest = 0
		n.left = max(n.left, NoiseAtOnce) + PerRequest
	}
	n.gain(0)
}

// unread is for the rest of a body that is read after the handler.
func (n *noise) unread() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rest = readAfterHandler
	n.gain(n.rest)
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.noise.read(n, time.Now()) {
		c.guard.mu.Lock()
		gone := c.gone
		c.leave()
		c.guard.mu.Unlock()
		if !gone {
			c.guard.close(c.Conn, c.peer, Noise)
		}
		return 0, errNoise
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.noise.wrote(n)
	return n, err
}
