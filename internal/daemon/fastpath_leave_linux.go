package daemon

import (
	"bytes"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// How connections leave the fast path.

// end closes the connection, and gives up a request of it that waits.
func (p *parked) end() {
	s, a := p.path.server, p.account
	if w := p.wait; w != nil {
		p.wait = nil
		w.giveUp()
	}
	p.path.loop.Remove(p.fd)
	_ = unix.Close(p.fd)
	p.rest, p.more, p.account = nil, false, nil
	p.path.departures.Go(func() { s.unparkEnded(a) })
}

// leave gives the connection a goroutine.
func (p *parked) leave(u unfinished) {
	p.path.loop.Remove(p.fd)
	p.handOver(u, true)
}

// handOver gives a connection that the loop does not know a goroutine. To do so takes locks, for
// which the loop does not wait: their holders wait for their turn in the runtime.
func (p *parked) handOver(u unfinished, mayReturn bool) {
	l, a, out := p.path, p.account, p.path.responder.out
	// The fast path uses its buffers again.
	u.input, u.output = bytes.Clone(u.input), bytes.Clone(u.output)
	out.Sent(len(out.Unsent()))
	p.wait, p.rest, p.more, p.account = nil, nil, false, nil
	l.departures.Go(func() {
		c := newConn(l.server, socketFile{os.NewFile(uintptr(p.fd), "connection")}, a)
		c.mayPark = mayReturn
		c.wire.Preload(u.input)
		if len(u.output) > 0 {
			a.takeMade(len(u.output))
		}
		c.unfinished = unfinished{output: u.output, waits: u.waits}
		l.server.unpark(l.work, c)
	})
}

// socketFile is a descriptor taken over as it is. net.FileConn would make a copy, for which there may
// be no descriptor left.
type socketFile struct{ *os.File }

func (f socketFile) CloseRead() error  { return f.shutdown(unix.SHUT_RD) }
func (f socketFile) CloseWrite() error { return f.shutdown(unix.SHUT_WR) }

func (f socketFile) shutdown(how int) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.Shutdown(int(fd), how) })
	return errors.Join(err, failed)
}
