package daemon

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A request may wait for a clock or a lease as long as its timeout_ms says. The
// goroutine that serves its connection sleeps meanwhile, and would not notice
// that the peer is gone: clients that give up early and come again would fill
// max_in_flight and max_connections with abandoned requests. So a goroutine looks after
// them from time to time, which costs requests that do not wait nothing.

// errHungUp ends the wait of a request after its peer has gone.
var errHungUp = errors.New("the peer is gone")

// watchHangups ends the waits of peers that are gone, until ctx is done.
func (s *Server) watchHangups(ctx context.Context) {
	ticker := time.NewTicker(s.patience.hangup)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s.eachConn(func(c *conn) {
			if c.waiting.Load() && hungUp(c.net) {
				c.abandon(errHungUp)
			}
		})
		s.eachGuest(func(g *Guest) {
			if g.waiting.Load() != nil && hungUp(g.Conn) {
				g.abandon(errHungUp)
			}
		})
	}
}

// Watched reports whether a wait of the guest ends when its peer is gone. Over TCP such a peer
// looks like a peer that has merely stopped sending, until it is sent something.
func (g *Guest) Watched() bool {
	_, local := g.Conn.(*net.UnixConn)
	return local
}

// hungUp reports whether the peer has closed its end. A peer that has merely stopped sending
// still reads its answers.
func hungUp(nc any) (gone bool) {
	socket, ok := nc.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		// Only writing is asked about: asked about reading, some systems report a peer that
		// stopped sending as gone.
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(fds, 0)
		gone = err == nil && n == 1 && fds[0].Revents&unix.POLLHUP != 0
	})
	return gone
}
