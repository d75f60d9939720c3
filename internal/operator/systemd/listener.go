package systemd

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Listener counts the turns of a loop that accepts connections.
type Listener struct {
	net.Listener
	deadline func(time.Time) error
	most     int64 // connections after which the loop may rest
	open     atomic.Int64
	turns    atomic.Uint64
}

// NewListener wraps l for a loop that stops accepting while most connections are
// open. l must support deadlines, as listeners on TCP and Unix sockets do.
func NewListener(l net.Listener, most int) *Listener {
	return &Listener{Listener: l, deadline: l.(interface{ SetDeadline(time.Time) error }).SetDeadline, most: int64(most)}
}

// Turns counts the turns of the loop.
func (l *Listener) Turns() uint64 { return l.turns.Load() }

// Prod makes a loop that waits for a connection take a turn. A loop that has stopped
// accepting because of the limit cannot, so Prod counts a turn for it.
func (l *Listener) Prod() {
	_ = l.deadline(time.Now())
	if l.open.Load() >= l.most {
		l.turns.Add(1)
	}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		l.turns.Add(1)
		c, err := l.Listener.Accept()
		if err == nil {
			l.open.Add(1)
			return &countedConn{Conn: c, closed: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, err
		}
		_ = l.deadline(time.Time{})
	}
}

type countedConn struct {
	net.Conn
	closed func()
}

// NetConn returns the connection itself, as tls.Conn's does.
func (c *countedConn) NetConn() net.Conn { return c.Conn }

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}
