//go:build linux

package abuse

import (
	"net"
	"runtime"
)

// controls attack nobody: their processes only use up the processors, as those of attackers
// do. They show what the innocent gets on this machine from a server that is left alone.
var (
	controlSocket = []attack{{name: "control: no attack, busy processors", users: 4, begin: (*attacker).burn}}
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
