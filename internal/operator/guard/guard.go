// Package guard limits what connections can take from a server of HTTP/1, with TLS and
// without it.
//
// A connection is unproven until Proven is called for one of its requests: the server has
// found a credential then. An unproven connection that waits for its next request for too
// long is closed. When all places are taken, a newcomer gets the place of an unproven
// connection, whatever that one is doing: of the peer that has the most of them, the
// oldest. So a peer without a credential cannot keep others out, however many connections
// it has, and however slowly it sends or reads.
package guard

import (
	"container/list"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kazahana/kazahana/internal/turnstile"
	"github.com/kazahana/kazahana/internal/unixsock"
)

// Limits of a server's connections.
type Limits struct {
	Connections int           // at once; 1 or more
	PerAddress  int           // at once from one address, /64 of IPv6, or user of a Unix socket; 0: no limit
	Unproven    time.Duration // the longest wait of an unproven connection for its next request
	Young       time.Duration // for so long a connection has its place before one of the same peer gets it
}

// Reason says why a connection was closed.
type Reason string

// The reasons. Connections and PerAddress close the newcomer only if no connection can make
// room for it.
const (
	Full       Reason = "full"        // Connections
	PerAddress Reason = "per_address" // PerAddress
	Unproven   Reason = "unproven"    // Unproven
)

// socketBuffer bounds what the kernel keeps of a connection in each direction, which could
// be megabytes otherwise.
const socketBuffer = 64 << 10

// Guard watches over the connections of one server.
type Guard struct {
	limits     Limits
	closed     func(Reason, string)
	handshakes *turnstile.Turnstile[any] // by peer.id

	mu    sync.Mutex // guards all below, the fields of each peer, and of each conn
	open  int
	peers map[any]*peer
	ranks []*list.List // ranks[n] are the peers with n unproven connections, for n > 0
	top   int          // no peer has more
}

// peer is an address or a user that has connections.
type peer struct {
	id       any // a netip.Prefix or a user; "unknown" for all that cannot be known
	open     int
	unproven list.List     // of *conn, the oldest first
	place    *list.Element // in ranks, if any is unproven
}

// New returns a guard. closed is called for each connection that the guard closes, with the
// peer, such as "UID 1000" or "10.0.0.1/32"; it must return at once.
func New(limits Limits, closed func(Reason, string)) *Guard {
	return &Guard{limits: limits, closed: closed, handshakes: turnstile.New[any](atOnce()), peers: map[any]*peer{}}
}

// Protect makes the guard follow the server's requests, and the server speak HTTP/1 only:
// with HTTP/2 one connection has many requests, and what it sends need not be any. It is
// called before the server serves the guard's listener.
func (g *Guard) Protect(server *http.Server) {
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true)
	g.gate(server)
	next := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(key{}).(*conn); ok {
			c.begin()
			defer c.end()
		}
		next.ServeHTTP(w, r)
	})
	server.ConnContext = func(ctx context.Context, nc net.Conn) context.Context {
		return context.WithValue(ctx, key{}, below(nc))
	}
	server.ConnState = func(nc net.Conn, to http.ConnState) {
		if c, ok := below(nc).(*conn); ok {
			c.ahead.Changed(to)
		}
	}
}

// below is the connection without TLS.
func below(nc net.Conn) net.Conn {
	if over, ok := nc.(*tls.Conn); ok {
		return over.NetConn()
	}
	return nc
}

// key is the context key of a request's connection.
type key struct{}

// Proven marks the connection of the request with this context as proven: its client has
// shown a credential.
func Proven(ctx context.Context) {
	if c, ok := ctx.Value(key{}).(*conn); ok {
		c.guard.mu.Lock()
		defer c.guard.mu.Unlock()
		c.patient = true
		c.settle()
	}
}

// Patient lets the connection of the request with this context wait for its next request
// as long as the server does. It makes room for newcomers all the same. It is for servers
// whose clients have no credentials.
func Patient(ctx context.Context) {
	if c, ok := ctx.Value(key{}).(*conn); ok {
		c.guard.mu.Lock()
		defer c.guard.mu.Unlock()
		c.patient = true
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
	id := identify(nc)
	g.mu.Lock()
	p := g.peers[id]
	if p == nil {
		p = &peer{id: id}
	}
	victim, why := g.victim(p)
	if victim == nil && why != "" {
		g.mu.Unlock()
		g.close(nc, p, why)
		// A loop that turns away a herd never waits, and would go on for 10 ms at a time.
		runtime.Gosched()
		return nil
	}
	if victim != nil {
		victim.leave()
	}
	c := &conn{Conn: nc, guard: g, peer: p, since: time.Now(), ahead: Ahead{Peer: id}}
	g.peers[id] = p // the victim may have been its last connection
	g.open++
	p.open++
	c.element = p.unproven.PushBack(c)
	g.rank(p, p.unproven.Len()-1)
	c.wait()
	g.mu.Unlock()
	if victim != nil {
		g.close(victim.Conn, victim.peer, why)
	}
	return c
}

// victim is the connection that makes room for a newcomer of the peer, and the limit that
// is reached, "" for none. mu is held.
func (g *Guard) victim(p *peer) (*conn, Reason) {
	if g.limits.PerAddress > 0 && p.open >= g.limits.PerAddress {
		return g.grown(p.oldest()), PerAddress
	}
	if g.open < g.limits.Connections {
		return nil, ""
	}
	for g.top > 0 && g.ranks[g.top].Len() == 0 {
		g.top--
	}
	// Of equals, and of those that would be equal, the newcomer's own peer: else such peers
	// would take each other's places in turn.
	own := p.oldest()
	switch {
	case g.top == 0:
		return nil, Full
	case own != nil && p.unproven.Len()+1 >= g.top:
		return g.grown(own), Full
	}
	return g.ranks[g.top].Front().Value.(*peer).oldest(), Full
}

// grown is the connection, nil if it is young.
func (g *Guard) grown(c *conn) *conn {
	if c == nil || time.Since(c.since) < g.limits.Young {
		return nil
	}
	return c
}

// oldest is the peer's oldest unproven connection, nil if there is none.
func (p *peer) oldest() *conn {
	if first := p.unproven.Front(); first != nil {
		return first.Value.(*conn)
	}
	return nil
}

// rank sorts the peer by its number of unproven connections, last among equals. mu is held.
func (g *Guard) rank(p *peer, before int) {
	if p.place != nil {
		g.ranks[before].Remove(p.place)
		p.place = nil
	}
	n := p.unproven.Len()
	if n == 0 {
		return
	}
	for len(g.ranks) <= n {
		g.ranks = append(g.ranks, list.New())
	}
	p.place = g.ranks[n].PushBack(p)
	g.top = max(g.top, n)
}

func (g *Guard) close(nc net.Conn, p *peer, why Reason) {
	g.closed(why, fmt.Sprint(p.id))
	_ = nc.Close()
}

// identify tells one peer from another, and bounds what the kernel keeps for the
// connection.
func identify(nc net.Conn) any {
	nc = innermost(nc)
	switch nc := nc.(type) {
	case *net.TCPConn:
		_, _ = nc.SetReadBuffer(socketBuffer), nc.SetWriteBuffer(socketBuffer)
	case *net.UnixConn:
		if who, err := unixsock.PeerOf(nc); err == nil {
			return user(who.UID)
		}
	}
	if address := Network(nc.RemoteAddr().String()); address.IsValid() {
		return address
	}
	return "unknown"
}

// innermost is what the connection wraps.
func innermost(nc net.Conn) net.Conn {
	for {
		outer, ok := nc.(interface{ NetConn() net.Conn })
		if !ok {
			return nc
		}
		nc = outer.NetConn()
	}
}

// user is a UID.
type user uint32

func (u user) String() string { return fmt.Sprintf("UID %d", uint32(u)) }

// Network is the part of a peer's IP:PORT that counts: one address of IPv4, or one /64 of
// IPv6, since a client with one address of that has all of its network. It is invalid for
// anything else, such as the name of a Unix socket.
func Network(remote string) (p netip.Prefix) {
	at, err := netip.ParseAddrPort(remote)
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

// conn is a connection that has a place.
type conn struct {
	net.Conn
	guard   *Guard
	peer    *peer
	since   time.Time
	element *list.Element // of peer.unproven; nil: it is proven, or has left
	patient bool          // it may wait for its next request
	gone    bool
	busy    bool // with a request
	waits   int  // that began: a timer that fires late ends no later wait
	timer   *time.Timer
	ahead   Ahead
	abandon context.CancelCauseFunc // ends the wait for a handshake's turn; nil: there was none
	shaking atomic.Bool             // it has a handshake's turn; not guarded
	behind  atomic.Bool             // the thread of its handshake is behind others; not guarded
	dear    atomic.Bool             // what follows its client's greeting needs a turn; not guarded
	more    atomic.Bool             // what its client sends next needs a turn; not guarded
}

// begin marks the beginning of a request, and end its end.
func (c *conn) begin() {
	c.more.Store(false)
	c.endHandshake()
	c.guard.mu.Lock()
	c.busy = true
	c.timer.Stop()
	c.guard.mu.Unlock()
	c.ahead.begin()
}

func (c *conn) end() {
	c.ahead.end()
	c.guard.mu.Lock()
	defer c.guard.mu.Unlock()
	c.busy = false
	if !c.gone && !c.patient {
		c.wait()
	}
}

// wait begins the wait for a request. mu is held.
func (c *conn) wait() {
	c.waits++
	this := c.waits
	c.timer = time.AfterFunc(c.guard.limits.Unproven, func() { c.expire(this) })
}

// expire ends a wait that was too long.
func (c *conn) expire(wait int) {
	c.guard.mu.Lock()
	over := !c.busy && !c.gone && c.waits == wait && !c.patient
	if over {
		c.leave()
	}
	c.guard.mu.Unlock()
	if over {
		c.guard.close(c.Conn, c.peer, Unproven)
	}
}

// settle takes the connection from the unproven ones. mu is held.
func (c *conn) settle() {
	if c.element == nil {
		return
	}
	before := c.peer.unproven.Len()
	c.peer.unproven.Remove(c.element)
	c.element = nil
	c.guard.rank(c.peer, before)
}

// leave gives the place back. mu is held.
func (c *conn) leave() {
	if c.gone {
		return
	}
	c.gone = true
	if c.abandon != nil {
		c.abandon(net.ErrClosed)
	}
	c.timer.Stop()
	c.settle()
	c.guard.open--
	if c.peer.open--; c.peer.open == 0 {
		delete(c.guard.peers, c.peer.id)
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.guard.mu.Lock()
	c.leave()
	c.guard.mu.Unlock()
	c.endHandshake()
	return c.Conn.Close()
}
