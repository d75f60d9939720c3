package systemd

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// Listener counts the turns of a loop that accepts connections. The loop never rests: it accepts
// connections above a limit and closes them (see package limitlistener).
type Listener struct {
	net.Listener
	deadline func(time.Time) error
	turns    atomic.Uint64
}

// NewListener wraps l, which must support deadlines, as listeners on TCP and Unix sockets do.
func NewListener(l net.Listener) *Listener {
	return &Listener{Listener: l, deadline: l.(interface{ SetDeadline(time.Time) error }).SetDeadline}
}

// Turns counts the turns of the loop.
func (l *Listener) Turns() uint64 { return l.turns.Load() }

// Prod makes a loop that waits for a connection take a turn.
func (l *Listener) Prod() { _ = l.deadline(time.Now()) }

// Accept implements net.Listener. The connection is the listener's own: others look at its type.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		l.turns.Add(1)
		c, err := l.Listener.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return c, err
		}
		_ = l.deadline(time.Time{})
	}
}
