package daemon

import (
	"net"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// While connections that leave the fast path hold more than maxDeparting bytes, users who have any
// among them get no turns. Any other user may still add what one turn leaves, until all of them
// hold maxDepartingOfAll. No account counts these bytes yet.
const (
	maxDeparting      = 2 << 20
	maxDepartingOfAll = 4 * maxDeparting
	// departureSize is what the move itself takes: a goroutine, and its buffers.
	departureSize = 4 << 10
)

// handoff takes connections out of the fast path. The fast path's thread only leaves them there: what
// is to be done for them takes locks, for which it would wait while those who have them
// wait for their turn in the runtime.
type handoff struct {
	path *eventPath
	held atomic.Int64              // bytes of those that are not seen to
	last atomic.Pointer[departure] // of those that nobody has seen to
	wake chan struct{}
	idle chan struct{} // closed when all have been seen to, and no more come
}

// departure is a connection that leaves the fast path.
type departure struct {
	before    *departure
	account   *account
	fd        int // -1: it is closed
	ended     bool
	mayReturn bool
	unfinished
}

func newHandoff(l *eventPath) *handoff {
	p := &handoff{path: l, wake: make(chan struct{}, 1), idle: make(chan struct{})}
	go p.run()
	return p
}

// behind reports whether the user is to wait for the handoff, which prods the fast path then.
func (p *handoff) behind(u *user) bool {
	held := p.held.Load()
	return held > maxDepartingOfAll || held > maxDeparting && u.departing.Load() > 0
}

// hold counts what a departure holds, or no longer does, and returns the sum of all.
func (p *handoff) hold(d *departure, size int64) int64 {
	d.account.user.departing.Add(size)
	return p.held.Add(size)
}

func (d *departure) size() int64 { return int64(departureSize + len(d.input) + len(d.output)) }

// leave is called by the fast path. It waits for nothing.
func (p *handoff) leave(d *departure) {
	p.hold(d, d.size())
	for {
		d.before = p.last.Load()
		if p.last.CompareAndSwap(d.before, d) {
			break
		}
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// close returns when all connections have been seen to. No more come.
func (p *handoff) close() {
	close(p.wake)
	<-p.idle
}

func (p *handoff) run() {
	defer close(p.idle)
	for open := true; open; {
		_, open = <-p.wake
		var first *departure
		for d := p.last.Swap(nil); d != nil; {
			d, d.before, first = d.before, first, d
		}
		for d := first; d != nil; d = d.before {
			size := d.size()
			p.see(d)
			left, u := p.hold(d, -size), d.account.user
			under := func(limit int64) bool { return left <= limit && left+size > limit }
			switch {
			case under(maxDeparting), under(maxDepartingOfAll):
				p.path.prod(p.path.allGoOn)
			case left > maxDeparting && u.departing.Load() == 0:
				p.path.prod(func() { p.path.goOn(u) })
			}
		}
	}
}

// see ends a connection, or gives it a goroutine.
func (p *handoff) see(d *departure) {
	s := p.path.server
	if d.ended {
		var left stream
		if d.fd >= 0 {
			left = d.stream()
		}
		s.unparkEnded(left, d.account)
		return
	}
	c := newConn(s, d.stream(), d.account)
	c.mayPark = d.mayReturn
	c.wire.Preload(d.input)
	if len(d.output) > 0 {
		c.account.takeMade(len(d.output))
	}
	c.unfinished = unfinished{output: d.output, waits: d.waits}
	s.unpark(p.path.work, c)
}

// stream is the connection outside of the fast path.
func (d *departure) stream() stream { return socketFile{os.NewFile(uintptr(d.fd), "connection")} }

// Socket takes a descriptor over as it is. net.FileConn would make a copy, for which there may
// be no descriptor left. The connection does not know its addresses.
func Socket(fd int) net.Conn { return socketFile{os.NewFile(uintptr(fd), "connection")} }

type socketFile struct{ *os.File }

// LocalAddr implements net.Conn.
func (socketFile) LocalAddr() net.Addr { return nil }

// RemoteAddr implements net.Conn.
func (socketFile) RemoteAddr() net.Addr { return nil }

func (f socketFile) CloseWrite() error {
	return withFD(f, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
}
