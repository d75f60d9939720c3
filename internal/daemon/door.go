package daemon

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kazahana/kazahana/internal/generator"
	"github.com/kazahana/kazahana/internal/issuer"
	"github.com/kazahana/kazahana/internal/operator/limitlistener"
	"github.com/kazahana/kazahana/internal/wire"
)

// Door is another way to ask for IDs than MessagePack-RPC on the server's socket. Its
// connections are subject to the same credentials and limits, and its IDs come from the
// same services. A protocol package reads requests and writes answers.
type Door struct {
	server    *Server
	name      string
	succeeded prometheus.Counter
	refusal   func(*wire.Error) []byte
	turning   sync.WaitGroup
	turnedOut int // connections that are being turned away; guarded by Server.mu
}

// NewDoor returns a door. Its name counts requests in the metrics. refusal makes the message to a
// connection that is turned away.
func (s *Server) NewDoor(name string, refusal func(*wire.Error) []byte) *Door {
	return &Door{
		server: s, name: name, succeeded: s.metrics.IDRequests(name), refusal: refusal,
	}
}

// Guest is a connection by a door.
type Guest struct {
	net.Conn // Close leaves

	door    *Door
	account *account
	waiting atomic.Pointer[context.CancelCauseFunc] // ends the wait of a request; nil: none waits
	left    bool                                    // guarded by Server.mu
}

// evict makes the guest end at once, as conn.evict does.
func (g *Guest) evict() {
	_ = g.CloseRead()
	_ = g.Conn.SetWriteDeadline(time.Now())
	g.abandon(g.Evicted())
}

// CloseRead has the guest read to the end of what its peer has sent, and no further.
func (g *Guest) CloseRead() error {
	if half, ok := g.Conn.(interface{ CloseRead() error }); ok {
		return half.CloseRead()
	}
	return g.Conn.SetReadDeadline(time.Now())
}

// CloseWrite ends what is sent to the peer.
func (g *Guest) CloseWrite() error {
	if half, ok := g.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return g.Conn.SetWriteDeadline(time.Now())
}

// abandon ends the wait of the guest's request, if there is one.
func (g *Guest) abandon(why error) {
	if end := g.waiting.Load(); end != nil {
		(*end)(why)
	}
}

// Listener returns a listener that gives out Guests as connections. Its Accept fails only once
// l is closed.
func (d *Door) Listener(l net.Listener) net.Listener { return &entrance{l, d} }

type entrance struct {
	net.Listener
	door *Door
}

// Accept implements net.Listener.
func (e *entrance) Accept() (net.Conn, error) {
	for {
		nc, err := e.door.server.acceptOne(e.Listener, func(error) bool { return true })
		if err != nil {
			return nil, err
		}
		if g := e.door.admit(nc); g != nil {
			return g, nil
		}
	}
}

// admit returns nil for a connection that it turns away.
func (d *Door) admit(nc net.Conn) *Guest {
	s := d.server
	g := &Guest{Conn: nc, door: d}
	if unix, ok := nc.(*net.UnixConn); ok {
		g.account = s.bounds.open(unix)
	} else {
		g.account = s.bounds.openFor(owner{unknownUID, limitlistener.Network(nc.RemoteAddr().String())}, 0)
	}
	refusal, aloud := d.receive(g)
	switch {
	case refusal == nil:
		return g
	case aloud:
		d.turnAway(g, d.refusal(refusal))
	default:
		_ = nc.Close()
		g.account.close()
	}
	return nil
}

// receive counts a guest, or returns why not, and whether the peer is told.
func (d *Door) receive(g *Guest) (refusal *wire.Error, aloud bool) {
	s := d.server
	refusal = s.admit(g.account)
	s.mu.Lock()
	defer s.mu.Unlock()
	if socket, ok := g.Conn.(interface{ SetWriteBuffer(bytes int) error }); ok && s.limits.Load().MemoryLimit > 0 {
		_ = socket.SetWriteBuffer(sendBuffer)
	}
	if refusal == nil {
		g.account.moved(g.evict)
		s.guests[g] = struct{}{}
		s.countConnections()
		return nil, false
	}
	s.metrics.Requests("", string(refusal.Code)).Inc()
	if d.turnedOut == maxRefusals {
		return refusal, false
	}
	d.turnedOut++
	return refusal, true
}

// turnAway says why and closes. It waits a moment for the request: HTTP clients take an
// answer before their request for a mistake. Unread bytes would turn the close into a
// reset, which may overtake the answer, so it reads for a moment more.
func (d *Door) turnAway(g *Guest, why []byte) {
	nc := g.Conn
	d.turning.Go(func() {
		defer func() {
			_ = g.Close()
			d.server.mu.Lock()
			defer d.server.mu.Unlock()
			d.turnedOut--
		}()
		var waste [4096]byte
		_ = nc.SetDeadline(time.Now().Add(d.server.patience.refuse))
		_, _ = nc.Read(waste[:])
		_ = nc.SetDeadline(time.Now().Add(d.server.patience.refuse))
		if _, err := nc.Write(why); err == nil && g.CloseWrite() == nil {
			for range wire.MaxMessage / len(waste) {
				if _, err := nc.Read(waste[:]); err != nil {
					return
				}
			}
		}
	})
}

// Wait returns when no connection is being turned away any more. The listener is closed.
func (d *Door) Wait() { d.turning.Wait() }

// Stopping is the cause that ends waits when the daemon stops.
func (d *Door) Stopping() error { return errShuttingDown }

// eachGuest calls do for every guest, with the server's lock.
func (s *Server) eachGuest(do func(*Guest)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for g := range s.guests {
		do(g)
	}
}

// Close implements net.Conn: the guest leaves. Its place is free a moment after the peer sees that.
func (g *Guest) Close() error {
	s := g.door.server
	s.mu.Lock()
	left := g.left
	g.left = true
	s.mu.Unlock()
	if left {
		return nil
	}
	_ = g.Conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.guests, g)
	g.account.close()
	s.countConnections()
	return nil
}

// SetWriteDeadline implements net.Conn. No deadline outlasts an eviction, which is one too.
func (g *Guest) SetWriteDeadline(t time.Time) error {
	err := g.Conn.SetWriteDeadline(t)
	if g.Evicted() != nil { // its deadline was just lost
		return g.Conn.SetWriteDeadline(time.Now())
	}
	return err
}

// Memory counts the bytes that the guest's messages and answers hold.
func (g *Guest) Memory() wire.Memory { return g.account }

// Evicted is why the guest must go, nil if it may stay.
func (g *Guest) Evicted() error {
	if over := g.account.over.Load(); over != nil {
		return over
	}
	return nil
}

// ServiceOf finds a service by its name; "" is the default one. The error is a
// *wire.Error.
func (d *Door) ServiceOf(name []byte) (*issuer.Service, error) { return d.server.service(name) }

// Named finds a service by its name; "" is no name.
func (d *Door) Named(name []byte) (*issuer.Service, error) { return d.server.named(name) }

// Room counts the memory that the orders and IDs of a large request may take until done is
// called.
func (g *Guest) Room(count int64) (done func()) {
	const each, small = 24, 1024 // a range for each ID, at worst; an order is smaller
	if count <= small {
		return func() {}
	}
	g.account.Take(int(count) * each)
	return func() { g.account.Give(int(count) * each) }
}

// Next appends ranges that hold the wanted IDs of a service to dst. It waits for them until ctx is done,
// or the peer is gone.
func (g *Guest) Next(ctx context.Context, s *issuer.Service, want generator.Request, dst []generator.Range) ([]generator.Range, error) {
	if g.door.server.draining.Load() {
		return dst, shuttingDown()
	}
	ranges, pending, err := s.Generator().Start(0, want, dst)
	if pending == nil {
		return ranges, err
	}
	bytes, refusal := g.account.waits(want.Count)
	if refusal != nil {
		pending.Cancel(refusal)
		return nil, refusal
	}
	defer g.account.doneWaiting(bytes)
	ctx, abandon := context.WithCancelCause(ctx)
	defer abandon(nil)
	g.waiting.Store(&abandon)
	defer g.waiting.Store(nil)
	if err := g.Evicted(); err != nil { // before it could be abandoned
		abandon(err)
	}
	return pending.Wait(ctx)
}

// Elapsed is the server's clock for Answered.
func (d *Door) Elapsed() time.Duration { return d.server.elapsed() }

// Answered counts a request that came at the time began, and was answered without an error.
func (d *Door) Answered(began time.Duration) {
	d.succeeded.Inc()
	d.server.metrics.RPCDuration.Observe(d.server.elapsed()-began, 1)
}

// Failed counts a request that came at the time began, and returns the error that
// answers it; nil if no peer waits for the answer any more.
func (d *Door) Failed(err error, began time.Duration) *wire.Error {
	s := d.server
	if errors.Is(err, errHungUp) || errors.Is(err, context.Canceled) {
		return nil
	}
	reply := s.wireError(err)
	s.metrics.Requests(d.name, string(reply.Code)).Inc()
	s.metrics.RPCDuration.Observe(s.elapsed()-began, 1)
	return reply
}

// Patience is how long a guest's peer may take to end a message that has begun, and to
// read an answer.
func (d *Door) Patience() (message, write time.Duration) {
	return d.server.patience.message, d.server.patience.write
}

// DrainTimeout is how long a stop waits for requests under way.
func (d *Door) DrainTimeout() time.Duration { return d.server.DrainTimeout() }

// Drain ends the door's guests, as the server's connections are ended. running has one for each,
// and cancel ends the wait of a request.
func (d *Door) Drain(running *sync.WaitGroup, cancel context.CancelCauseFunc) {
	d.server.finish(running, func(do func(socket)) {
		d.server.eachGuest(func(g *Guest) {
			if g.door == d {
				do(g)
			}
		})
	}, func() { cancel(errShuttingDown) })
}
