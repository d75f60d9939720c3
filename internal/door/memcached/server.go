package memcached

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/kazahana/kazahana/internal/daemon"
	"github.com/kazahana/kazahana/internal/wire"
)

// Options of Serve.
type Options struct {
	Version   string
	EventLoop bool
	Log       *zap.Logger
}

type server struct {
	o        Options
	door     *daemon.Door
	started  time.Time
	work     context.Context // of requests under way
	fastPath *fastPath       // nil: every connection has a goroutine

	cut atomic.Bool // the time of the drain is over

	open, total, gets, hits, misses atomic.Int64 // for stats

	mu       sync.Mutex
	conns    map[*conn]struct{} // with a goroutine each; guarded by mu
	draining atomic.Bool        // set with mu held
	wg       sync.WaitGroup
}

// Serve answers on the listener, which it closes, until ctx is done. Then requests under
// way are answered, for as long as a drain of the daemon takes.
func Serve(ctx context.Context, l net.Listener, d *daemon.Door, o Options) error {
	s := newServer(d, o)
	if o.EventLoop {
		var err error
		if s.fastPath, err = newFastPath(s); err != nil {
			o.Log.Warn("no event loop here: every connection gets a goroutine, which is slower", zap.Error(err))
		}
	}
	s.serve(ctx, l)
	return nil
}

func newServer(d *daemon.Door, o Options) *server {
	return &server{o: o, door: d, started: time.Now(), conns: map[*conn]struct{}{}}
}

func (s *server) serve(ctx context.Context, l net.Listener) {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	s.work = work
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	entrance := s.door.Listener(l)
	for {
		nc, err := entrance.Accept()
		if err != nil {
			break
		}
		s.open.Add(1)
		s.total.Add(1)
		g := nc.(*daemon.Guest)
		if !s.park(g, g.Conn) {
			s.begin(g, g.Conn, unfinished{stays: true})
		}
	}
	s.drain(cancel)
	s.door.Wait()
}

// park hands a connection that rests to the event loop, and reports whether it did.
func (s *server) park(g *daemon.Guest, nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fastPath != nil && !s.draining.Load() && s.fastPath.park(g, nc)
}

// unfinished is what a connection has in hand when it leaves the event loop.
type unfinished struct {
	input, output []byte
	pending       get  // with a wait; else there is none
	stays         bool // it does not go back: there is no event loop, or none that takes it
}

// begin serves a connection in a goroutine.
func (s *server) begin(g *daemon.Guest, nc net.Conn, u unfinished) {
	c := &conn{speaker: speaker{server: s, guest: g}, nc: nc, unfinished: u}
	g.Move(nc, func() { _ = nc.SetDeadline(time.Now()) })
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	s.wg.Go(func() {
		parked := c.serve()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		if !parked {
			s.leave(g)
		} else if !s.park(g, nc) {
			s.begin(g, nc, unfinished{stays: true})
		}
	})
}

// leave ends a connection.
func (s *server) leave(g *daemon.Guest) {
	s.open.Add(-1)
	_ = g.Close()
}

// drain ends all connections.
func (s *server) drain(cancel context.CancelCauseFunc) {
	if s.fastPath != nil {
		s.fastPath.close()
	}
	s.mu.Lock()
	s.draining.Store(true)
	for c := range s.conns {
		c.hurry()
	}
	s.mu.Unlock()
	finished := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(finished)
	}()
	_, timeout := s.door.Drain()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-finished:
		return
	case <-timer.C:
	}
	s.cut.Store(true)
	cancel(s.door.Stopping())
	s.mu.Lock()
	for c := range s.conns {
		_ = c.nc.SetDeadline(time.Now())
	}
	s.mu.Unlock()
	<-finished
}

// conn is a connection with a goroutine.
type conn struct {
	speaker
	unfinished
	nc      net.Conn
	buf     []byte
	held    int // bytes of buf that are counted
	end     daemon.MessageEnd
	unsaid  bool      // an answer was not sent, because of an eviction
	broken  bool      // an answer was sent in part, or not at all
	written time.Time // the write deadline
}

// smallBuffer is what a connection reads into, in the event loop as well. A longer line is counted.
const smallBuffer = 4 << 10

// serve answers until the connection ends, or rests.
func (c *conn) serve() (rests bool) {
	defer c.shrink()
	if rests = c.converse(); !rests {
		c.farewell()
	}
	return rests
}

// farewell tells a peer that expects an answer why its connection was evicted, if the kernel takes
// that at once.
func (c *conn) farewell() {
	why, ok := c.guest.Evicted().(*wire.Error)
	if !ok || c.broken || !c.unsaid && len(c.buf) == 0 {
		return
	}
	_ = c.nc.SetWriteDeadline(time.Time{})
	if raw, err := c.guest.SyscallConn(); err == nil {
		_ = raw.Write(func(fd uintptr) (done bool) {
			_, _ = syscall.Write(int(fd), Refusal(why))
			return true
		})
	}
}

func (c *conn) converse() (rests bool) {
	c.buf = append(make([]byte, 0, smallBuffer), c.input...)
	mayPark := !c.stays
	out, ok := c.take(c.unfinished)
	c.unfinished = unfinished{}
	for ok {
		if out, ok = c.lines(out); !ok {
			break
		}
		if out, ok = c.flush(out); !ok {
			break
		}
		if c.guest.Evicted() != nil {
			return false
		}
		if len(c.buf) == 0 && mayPark && !c.server.draining.Load() {
			return c.nc.SetDeadline(time.Time{}) == nil
		}
		ok = c.read()
	}
	return false
}

// take goes on where the event loop stopped.
func (c *conn) take(u unfinished) ([]byte, bool) {
	c.guest.Memory().Take(len(u.output))
	_, ok := c.flush(u.output)
	c.guest.Memory().Give(len(u.output))
	var out []byte
	switch {
	case u.pending.wait == nil:
		return out, ok
	case !ok:
		u.pending.wait.GiveUp()
		return out, false
	}
	c.begin()
	out, err := c.finish(c.server.work, out, u.pending, c.send)
	c.done()
	return out, ok && err == nil
}

// lines answers all that are whole.
func (c *conn) lines(out []byte) (_ []byte, ok bool) {
	rest := c.buf
	defer func() { c.buf = c.buf[:copy(c.buf, rest)] }()
	for {
		line, after, found := bytes.Cut(rest, []byte{'\n'})
		if !found && len(rest) > 0 && rest[0] == binaryRequest {
			_, _ = c.flush(append(out, notBinary...))
			return nil, false
		}
		if !found {
			return out, true
		}
		c.begin()
		var g get
		var then outcome
		out, g, then = c.answer(out, line, false)
		if then == waits {
			// Answers that are ready do not wait with it.
			if out, ok = c.flush(out); !ok {
				return out, false
			}
			var err error
			if out, err = c.finish(c.server.work, out, g, c.send); err != nil {
				return out, false
			}
		}
		c.done()
		rest = after
		c.end.Ended()
		if then == stop {
			_, _ = c.flush(out)
			return nil, false
		}
		if len(out) >= sendAt {
			if out, ok = c.flush(out); !ok {
				return out, false
			}
		}
	}
}

// flush sends the answers, and reports whether the peer still takes them.
func (c *conn) flush(out []byte) ([]byte, bool) {
	out, err := c.send(out)
	return out, err == nil
}

// send moves the deadline seldom: setting one costs as much as an answer.
func (c *conn) send(out []byte) ([]byte, error) {
	if len(out) == 0 {
		return out, nil
	}
	if err := c.guest.Evicted(); err != nil {
		c.unsaid = true
		return out, err
	}
	_, patience := c.server.door.Patience()
	if now := time.Now(); c.written.Sub(now) < patience/2 {
		c.written = now.Add(patience)
		if err := c.guest.SetWriteDeadline(c.written); err != nil {
			return out, err
		}
		if c.server.cut.Load() { // its deadline may just have been lost
			_ = c.guest.SetWriteDeadline(c.server.late())
		}
	}
	_, err := c.nc.Write(out)
	c.broken = err != nil
	return out[:0], err
}

// read waits for ever for a line to begin, and not for ever for its end.
func (c *conn) read() bool {
	if !c.room() {
		return false
	}
	message, _ := c.server.door.Patience()
	late, _ := c.server.door.Drain()
	if _, err := c.end.Limit(len(c.buf) > 0, message, c.server.draining.Load, late, c.guest.SetReadDeadline); err != nil {
		return false
	}
	n, err := c.nc.Read(c.buf[len(c.buf):cap(c.buf)])
	c.buf = c.buf[:len(c.buf)+n]
	return err == nil || n > 0
}

// room makes some for the rest of a line, and reports whether it may be as long.
func (c *conn) room() bool {
	if len(c.buf) == 0 {
		c.shrink()
	}
	if len(c.buf) < cap(c.buf) {
		return true
	}
	if cap(c.buf) >= maxLine {
		_, _ = c.send([]byte(lineTooLong))
		return false
	}
	if c.guest.Memory().Reserve(maxLine) != nil {
		return false
	}
	c.held = maxLine
	c.buf = append(make([]byte, 0, maxLine), c.buf...)
	return true
}

// shrink gives back a large buffer that is not needed.
func (c *conn) shrink() {
	if c.held > 0 {
		c.guest.Memory().Release(c.held)
		c.held, c.buf = 0, make([]byte, 0, smallBuffer)
	}
}

// hurry leaves the peer a moment for what it had sent before the drain.
func (c *conn) hurry() { _ = c.guest.SetReadDeadline(c.server.late()) }

// late is how long a peer has whose connection ends.
func (s *server) late() time.Time {
	late, _ := s.door.Drain()
	return time.Now().Add(late)
}
