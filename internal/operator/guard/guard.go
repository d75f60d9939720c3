// Package guard limits what connections can take from an HTTP server, over HTTP/1 and
// HTTP/2, with TLS and without it.
//
// A connection is unproven until Proven is called for one of its requests: the server has
// found a credential then. Unproven connections have to go on asking: one that waits for
// its next request for too long is closed. When all places are taken, a newcomer gets the
// place of the unproven connection that has waited longest, be it for a whole request
// head. So connections that nothing is known of cannot keep others out, however many
// there are.
package guard

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Limits of a server's connections.
type Limits struct {
	Connections int           // at once; 1 or more
	PerAddress  int           // at once from one address, or one /64 of IPv6; 0: no limit
	Unproven    time.Duration // the longest wait of an unproven connection for its next request
}

// Reason says why a connection was closed.
type Reason string

// The reasons.
const (
	Full       Reason = "full"        // Connections: a newcomer is closed, since every place is in use
	Replaced   Reason = "replaced"    // Connections: an unproven connection makes room for a newcomer
	PerAddress Reason = "per_address" // PerAddress: a newcomer is closed
	Unproven   Reason = "unproven"    // Unproven
)

// Guard watches over the connections of one server.
type Guard struct {
	limits Limits
	closed func(Reason, net.Addr)

	mu        sync.Mutex
	open      int
	byAddress map[netip.Prefix]int
	waiting   list.List // unproven connections without a request under way, longest first
}

// New returns a guard. closed is called for each connection that the guard closes, with
// the peer's address; it must return at once.
func New(limits Limits, closed func(Reason, net.Addr)) *Guard {
	return &Guard{limits: limits, closed: closed, byAddress: map[netip.Prefix]int{}}
}

// Protect makes the guard follow the server's requests. It is called before the server
// serves the guard's listener.
func (g *Guard) Protect(server *http.Server) {
	next := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(key{}).(*conn); ok {
			c.begin()
			defer c.end()
		}
		next.ServeHTTP(w, r)
	})
	server.ConnContext = func(ctx context.Context, nc net.Conn) context.Context {
		if over, ok := nc.(*tls.Conn); ok {
			nc = over.NetConn()
		}
		return context.WithValue(ctx, key{}, nc)
	}
}

// key is the context key of a request's connection.
type key struct{}

// Proven marks the connection of the request with this context as proven.
func Proven(ctx context.Context) {
	if c, ok := ctx.Value(key{}).(*conn); ok {
		c.guard.mu.Lock()
		defer c.guard.mu.Unlock()
		c.proven = true
	}
}

// Listener returns a listener whose connections are within the limits.
func (g *Guard) Listener(l net.Listener) net.Listener { return &listener{l, g} }

type listener struct {
	net.Listener
	guard *Guard
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.guard.admit(nc); c != nil {
			return c, nil
		}
	}
}

// admit returns nil for a connection that it has closed.
func (g *Guard) admit(nc net.Conn) *conn {
	g.mu.Lock()
	c := &conn{Conn: nc, guard: g, from: addressOf(nc.RemoteAddr())}
	if most := g.limits.PerAddress; most > 0 && c.from.IsValid() && g.byAddress[c.from] >= most {
		g.mu.Unlock()
		g.close(nc, PerAddress)
		return nil
	}
	var replaced *conn
	if g.open >= g.limits.Connections {
		front := g.waiting.Front()
		if front == nil {
			g.mu.Unlock()
			g.close(nc, Full)
			return nil
		}
		replaced = front.Value.(*conn)
		replaced.leave()
	}
	g.open++
	if c.from.IsValid() {
		g.byAddress[c.from]++
	}
	c.wait()
	g.mu.Unlock()
	if replaced != nil {
		g.close(replaced.Conn, Replaced)
	}
	return c
}

func (g *Guard) close(nc net.Conn, why Reason) {
	g.closed(why, nc.RemoteAddr())
	_ = nc.Close()
}

// addressOf is the part of a peer's address that counts; zero for a Unix socket.
func addressOf(a net.Addr) (p netip.Prefix) {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return p
	}
	address, bits := at.Addr().Unmap().WithZone(""), 32
	if address.Is6() {
		bits = 64
	}
	p, _ = address.Prefix(bits)
	return p
}

// conn is a connection that has a place. The guard's mu guards its fields.
type conn struct {
	net.Conn
	guard  *Guard
	from   netip.Prefix
	proven bool
	gone   bool
	busy   int           // requests under way; more than one with HTTP/2
	place  *list.Element // among those that wait
	timer  *time.Timer
}

// begin and end follow a request.

func (c *conn) begin() {
	c.guard.mu.Lock()
	defer c.guard.mu.Unlock()
	c.busy++
	c.stopWaiting()
}

func (c *conn) end() {
	c.guard.mu.Lock()
	defer c.guard.mu.Unlock()
	if c.busy--; c.busy == 0 && !c.proven && !c.gone {
		c.wait()
	}
}

// wait begins the wait for a request. mu is held.
func (c *conn) wait() {
	c.place = c.guard.waiting.PushBack(c)
	c.timer = time.AfterFunc(c.guard.limits.Unproven, c.expire)
}

func (c *conn) stopWaiting() {
	if c.place != nil {
		c.timer.Stop()
		c.guard.waiting.Remove(c.place)
		c.place = nil
	}
}

// expire ends a wait that was too long. A timer that fires late ends no later wait.
func (c *conn) expire() {
	c.guard.mu.Lock()
	over := c.place != nil && !c.gone
	if over {
		c.leave()
	}
	c.guard.mu.Unlock()
	if over {
		c.guard.close(c.Conn, Unproven)
	}
}

// leave gives the place back. mu is held.
func (c *conn) leave() {
	if c.gone {
		return
	}
	c.gone = true
	c.stopWaiting()
	c.guard.open--
	if !c.from.IsValid() {
		return
	}
	if c.guard.byAddress[c.from]--; c.guard.byAddress[c.from] == 0 {
		delete(c.guard.byAddress, c.from)
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.guard.mu.Lock()
	c.leave()
	c.guard.mu.Unlock()
	return c.Conn.Close()
}
