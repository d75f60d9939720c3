package memcached

import (
	"bytes"
	"net"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/eventloop"
)

// fastPath serves connections by one thread. It answers whole lines at once; a connection on
// which anything else happens leaves it.
type fastPath struct {
	loop   *eventloop.Loop
	ended  chan struct{}
	closed bool // guarded by server.mu

	// Of the loop's thread:
	speaker
	input, out []byte
}

func newFastPath(s *server) (*fastPath, error) {
	loop, err := eventloop.New()
	if err != nil {
		return nil, err
	}
	l := &fastPath{loop: loop, ended: make(chan struct{}), speaker: speaker{server: s}, input: make([]byte, smallBuffer), out: make([]byte, 0, 2*sendAt)}
	go func() {
		defer close(l.ended)
		loop.Run()
	}()
	return l, nil
}

// park takes the connection over, or reports false. server.mu is held.
func (l *fastPath) park(g *daemon.Guest, nc net.Conn) bool {
	socket, ok := nc.(syscall.Conn)
	if !ok || l.closed {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	fd := -1
	if raw.Control(func(original uintptr) {
		fd, err = unix.FcntlInt(original, unix.F_DUPFD_CLOEXEC, 0)
	}) != nil || err != nil {
		return false
	}
	_ = nc.Close() // the runtime's poller is not to be woken by what the fast path serves
	l.loop.Post(func() {
		p := &parked{path: l, fd: fd, guest: g}
		g.Move(nc, func() { l.loop.Post(p.evicted) })
		if l.loop.Add(fd, p) != nil {
			p.hand(unfinished{stays: true})
		}
	})
	return true
}

// close gives back all connections, and takes no more.
func (l *fastPath) close() {
	l.server.mu.Lock()
	l.closed = true // not in the middle of a park
	l.server.mu.Unlock()
	l.loop.Post(func() {
		l.loop.Stop()
		l.loop.Each(func(h eventloop.Handler) { h.(*parked).depart(unfinished{}) })
	})
	<-l.ended
}

// parked is a connection on the fast path.
type parked struct {
	path  *fastPath
	fd    int
	guest *daemon.Guest // nil: it is not on the fast path any more
	half  bool          // the peer sends no more
	gone  bool          // it reads no more either
}

// Ready implements eventloop.Handler.
func (p *parked) Ready(events uint32) {
	if p.guest == nil {
		return
	}
	p.gone = p.gone || events&(unix.EPOLLHUP|unix.EPOLLERR) != 0
	p.half = p.half || events&unix.EPOLLRDHUP != 0
	if p.gone {
		p.end()
		return
	}
	l := p.path
	n, errno := eventloop.Receive(p.fd, l.input)
	switch {
	case errno == unix.EAGAIN:
	case errno != 0 || n == 0:
		p.end()
	case p.serve(l.input[:n]) && (n == len(l.input) || p.half):
		l.loop.Again(p.fd) // there may be more, if only the end
	}
}

// serve answers the lines in b, and reports whether the connection is still on the fast path.
func (p *parked) serve(b []byte) bool {
	l := p.path
	l.speaker.guest = p.guest
	l.begin()
	defer l.done()
	out := l.out[:0]
	for {
		line, rest, found := bytes.Cut(b, []byte{'\n'})
		if !found {
			break
		}
		var g get
		var then outcome
		before := len(out)
		out, g, then = l.answer(out, line, true)
		switch then {
		case stop, heavy: // the line is answered there
			p.depart(unfinished{input: b, output: out[:before]})
			return false
		case waits:
			g.keys, g.orders = bytes.Clone(g.keys), slices.Clone(g.orders)
			p.depart(unfinished{input: rest, output: out, pending: g})
			return false
		}
		if b = rest; len(out) >= sendAt {
			if !p.send(out, b) {
				return false
			}
			out = out[:0]
		}
	}
	if len(b) > 0 { // a line has begun
		p.depart(unfinished{input: b, output: out})
		return false
	}
	return p.send(out, nil)
}

// send writes answers, and reports whether the connection is still on the fast path. b is
// what has not been answered yet.
func (p *parked) send(out, b []byte) bool {
	if len(out) == 0 {
		return true
	}
	n, errno := eventloop.Send(p.fd, out)
	switch {
	case errno != 0 && errno != unix.EAGAIN:
		p.end()
		return false
	case errno != 0 || n < len(out):
		p.depart(unfinished{input: b, output: out[max(n, 0):]})
		return false
	}
	return true
}

// evicted ends the connection if it is still on the fast path.
func (p *parked) evicted() {
	if p.guest != nil {
		p.end()
	}
}

// end closes the connection.
func (p *parked) end() {
	p.path.loop.Remove(p.fd)
	_ = unix.Close(p.fd)
	p.path.server.leave(p.guest)
	p.guest = nil
}

// depart gives the connection a goroutine.
func (p *parked) depart(u unfinished) {
	p.path.loop.Remove(p.fd)
	p.hand(u)
}

// hand gives a connection that the loop does not know a goroutine.
func (p *parked) hand(u unfinished) {
	g, s := p.guest, p.path.server
	p.guest = nil
	u.input, u.output = bytes.Clone(u.input), bytes.Clone(u.output)
	s.begin(g, daemon.Socket(p.fd), u)
}
