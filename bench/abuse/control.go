//go:build linux

package abuse

import (
	"context"
	"fmt"
	"net"
	"runtime"

	"github.com/kazahana/kazahana/internal/wire"
)

// controls attack nobody. The processes of most only use up the processors, as those of attackers
// do: they show what the innocent gets on this machine from a server that is left alone. Those of
// the honest do what programs do.
var (
	controlSocket = []attack{
		{name: "control: no attack, busy processors", users: 4, begin: (*attacker).burn},
		{name: "control: honest clients", users: 1, honest: true, begin: func(a *attacker) { a.keep(500, a.socket, a.work) }},
	}
	controlServer = []attack{{name: "server: control, busy processors", users: 4, begin: (*attacker).burn}}
)

// burn keeps all processors busy, in and out of the kernel, with a socket of its own.
func (a *attacker) burn() {
	for range runtime.NumCPU() {
		go func() {
			l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				return
			}
			for b := make([]byte, 1024); ; {
				if _, err := l.WriteTo(b, l.LocalAddr()); err != nil {
					continue
				}
				a.now.sent.Add(int64(len(b)))
				_, _, _ = l.ReadFrom(b)
			}
		}()
	}
}

// work is what a program of one user does on a connection: it asks for one ID after the other,
// and for a batch now and then. Some hold a lock, renew it and wait for another one, or take
// values of a sequence. No quota may refuse any of it.
func (a *attacker) work(conn net.Conn) {
	const some, term, batch = 10, 60_000, 100 // connections, ms, IDs
	n := int(a.now.working.Add(1))
	c := wire.NewClient(conn)
	defer c.Close()
	call := func(method string, params ...any) {
		a.now.asked.Add(1)
		if err := c.Call(context.Background(), method, nil, params...); err != nil {
			a.now.refused.Add(1)
			a.why.CompareAndSwap(nil, fmt.Sprintf("%s: %v", method, err))
		}
	}
	own, shared := a.key(n), a.key(-1)
	if n%some == 0 {
		call("Lock.Acquire", own, options{"ttl_ms": term, "hold": "connection"})
	}
	for turn := 0; c.Err() == nil; turn++ {
		call("NextID")
		switch {
		case turn%some != 0:
		case n%some == 0:
			call("Lock.Renew", own, options{"ttl_ms": term})
			call("Lock.Acquire", shared, options{"ttl_ms": term, "wait_ms": term})
			call("Lock.Release", shared)
		case n%some == 1:
			call("Sequence.Next", own)
		default:
			call("NextIDs", batch)
		}
	}
}
