// Package limitlistener limits the connections of a listener: of all peers together, and of
// each address. It accepts a connection above a limit and closes it at once, so that its peer
// knows, and no newcomer waits in the kernel's queue behind it.
package limitlistener

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// Limits of a listener's connections.
type Limits struct {
	Connections int // open at the same time, 1 or more
	PerAddress  int // of them, from one address of IPv4 or one /64 of IPv6; 0: no limit of their own
}

// Refusal says which limit a connection was above.
type Refusal struct {
	Limit   int
	Address netip.Prefix // the address of the limit PerAddress; invalid: it is the limit of all
}

// String is for operators.
func (r Refusal) String() string {
	if !r.Address.IsValid() {
		return fmt.Sprintf("all %d connections are in use", r.Limit)
	}
	return fmt.Sprintf("address %v has %d connections, as many as one may have", r.Address.Addr(), r.Limit)
}

// sendBuffer bounds the bytes that the kernel keeps of answers that a peer over TCP does not
// read, which could be megabytes for each connection otherwise.
const sendBuffer = 64 << 10

// listener counts the connections that it has accepted.
type listener struct {
	net.Listener
	limits  Limits
	refused func(Refusal)

	mu        sync.Mutex
	open      int
	addresses map[netip.Prefix]int // the ones with open connections
}

// New returns a listener that keeps its open connections within the limits. Connections over a
// Unix socket have no address, and count among all. refused is called for each connection that
// is closed at once; it must not block.
func New(l net.Listener, limits Limits, refused func(Refusal)) net.Listener {
	return &listener{Listener: l, limits: limits, refused: refused, addresses: map[netip.Prefix]int{}}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address := Network(nc.RemoteAddr().String())
		if r, within := l.enter(address); !within {
			l.refused(r)
			_ = nc.Close()
			continue
		}
		if tcp, ok := nc.(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(sendBuffer)
		}
		return &conn{Conn: nc, leave: sync.OnceFunc(func() { l.leave(address) })}, nil
	}
}

// enter counts a connection, or says which limit it is above.
func (l *listener) enter(address netip.Prefix) (_ Refusal, within bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.open >= l.limits.Connections:
		return Refusal{Limit: l.limits.Connections}, false
	case !address.IsValid():
	case l.limits.PerAddress > 0 && l.addresses[address] >= l.limits.PerAddress:
		return Refusal{Limit: l.limits.PerAddress, Address: address}, false
	default:
		l.addresses[address]++
	}
	l.open++
	return Refusal{}, true
}

func (l *listener) leave(address netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if !address.IsValid() {
		return
	}
	if l.addresses[address]--; l.addresses[address] == 0 {
		delete(l.addresses, address)
	}
}

// conn is a connection that counts until it is closed.
type conn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *conn) Close() error {
	defer c.leave() // after the descriptor is free
	return c.Conn.Close()
}

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

// filesBeside is the number of files that a process opens besides the connections that it
// serves: state, stores, connections to servers, and connections that it turns away.
const filesBeside = 192

// Files is how many connections the process may have open, as RLIMIT_NOFILE allows.
func Files() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt32
	}
	allowed := int(min(uint64(limit.Cur), math.MaxInt32)) // Go has raised it to the hard limit
	return max(allowed-filesBeside, allowed/2)
}

// Beside is how many connections a listener may have that is no more than an addition to
// the process's main one: most, or an eighth of all.
func Beside(most int) int { return max(min(most, Files()/8), 1) }
